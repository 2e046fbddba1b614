"""`trace`: the forward pass of a model as a list of steps, each a module or operation with its arguments.

torch.fx traces symbolically and needs no input; if that fails, because of control flow that depends on shapes for
example, torch.export traces with an example input. Both give the same steps.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..errors import ConversionError
from ..eval_mode import kept_buffers, undisturbed
from ..layers.contract import BayesianLayer, original as original
from ..sampling import Site, has_means, using


@dataclass(frozen=True)
class Step:
    """One node of a trace.

    name: the input, the attribute, the module (its first name in the model) or the operation ("relu", "add", ...; one
    name for in-place and plain, function and method, torch and aten; with "?" before it if it is not torch's).
    args, kwargs: those of the call, with `fx.Node` for results of other steps.
    shape: of the result, if it is a tensor and there is an example input.
    """

    node: fx.Node
    kind: Literal["input", "attribute", "module", "op", "output"]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...] | None


def trace(model: nn.Module, example_input: Any = None) -> list[Step]:
    """The steps of a forward pass in order; the model, its statistics and the random generators are not changed.

    example_input: a tensor, a tuple of positional arguments or a mapping of named ones; None leaves shapes unknown.

    >>> [step.name for step in trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))]
    ['input', '0', '1', 'output']
    """
    bound = _bound(model, example_input)
    with untouched(model):
        try:
            return _fx_steps(model, bound)
        except ConversionError:
            raise
        except Exception as error:  # whatever a user's forward may raise when it is given proxies
            symbolic = error
        if bound is None:
            raise ConversionError(
                f"torch.fx cannot trace {type(model).__name__} ({_first_line(symbolic)}); give an example_input, so "
                f"that torch.export can try, or say who feeds whom yourself with ChannelGraph.from_groups(model, ...)"
            ) from symbolic
        try:
            return _export_steps(model, bound)
        except Exception as error:
            raise ConversionError(
                f"{type(model).__name__} can be traced neither by torch.fx ({_first_line(symbolic)}) nor by "
                f"torch.export ({_first_line(error)}); say who feeds whom yourself with "
                f"ChannelGraph.from_groups(model, ...)"
            ) from error


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run a block in eval mode without gradients, at the means if there are any, and restore the model after it."""
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ConversionError("the model has lazy modules without shapes; run one batch through it first")
    with undisturbed(model), kept_buffers(model), using(mean_only=has_means(model), estimator="weight"):
        yield


class _Tracer(fx.Tracer):
    """Stops at torch's modules, at subclasses of them with the same forward, and at Bayesian layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, (BayesianLayer, Site)):
            return True
        return type(m).forward.__module__.startswith("torch.nn.modules") and not isinstance(m, nn.Sequential)


class _Shapes(fx.Interpreter):
    """Runs a traced model and records the shape of every tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = tuple(result.shape)
        return result


def _bound(model: nn.Module, example_input: Any) -> inspect.BoundArguments | None:
    """The example input as the forward's arguments, those left out at their defaults."""
    if example_input is None:
        return None
    signature = inspect.signature(model.forward)
    positional = example_input if isinstance(example_input, (tuple, list)) else [example_input]
    try:
        named = isinstance(example_input, Mapping)
        bound = signature.bind(**example_input) if named else signature.bind(*positional)
    except TypeError as error:
        raise ConversionError(
            f"the example input does not fit {type(model).__name__}.forward{signature}: {error}; give a tensor, a "
            f"tuple of positional arguments or a mapping of named ones"
        ) from error
    bound.apply_defaults()
    return bound


def _fx_steps(model: nn.Module, bound: inspect.BoundArguments | None) -> list[Step]:
    root = copy.copy(model)  # a tracer sets constants on its root
    # arguments that are not given keep their default, so that `if mask is None` goes as in the example
    given = {} if bound is None else bound.arguments
    constant = {
        name: parameter.default
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if isinstance(parameter.default, (NoneType, bool, int, float, str))
        and given.get(name, parameter.default) is parameter.default
    }
    graph = _Tracer().trace(root, concrete_args=constant or None)
    shapes = _shapes(root, graph, bound)
    first_names = _first_names(root)
    steps = []
    for node in graph.nodes:
        kind, name = _fx_kind(node)
        if kind == "module":
            name = first_names[id(root.get_submodule(name))]
        elif kind == "attribute" and isinstance(value := operator.attrgetter(name)(root), Tensor):
            shapes[node] = tuple(value.shape)
        steps.append(Step(node, kind, name, node.args, node.kwargs, shapes.get(node)))
    return steps


def _shapes(root: nn.Module, graph: fx.Graph, bound: inspect.BoundArguments | None) -> dict[fx.Node, tuple[int, ...]]:
    """The shape of every tensor in a run on the example."""
    if bound is None:
        return {}
    interpreter = _Shapes(fx.GraphModule(root, graph))
    try:
        interpreter.run(*bound.args, *bound.kwargs.values())
    except Exception as error:
        raise ConversionError(
            f"{type(root).__name__} cannot run on the example input: {_first_line(error)}; check its shape and dtype"
        ) from error
    copies = zip(graph.nodes, interpreter.graph.nodes, strict=True)  # a GraphModule copies its graph
    return {node: interpreter.shapes[twin] for node, twin in copies if twin in interpreter.shapes}


def _fx_kind(node: fx.Node) -> tuple[Any, str]:
    if node.op in ("placeholder", "get_attr", "call_module", "output"):
        kinds = {"placeholder": "input", "get_attr": "attribute", "call_module": "module", "output": "output"}
        return kinds[node.op], str(node.target)
    if node.op == "call_method":
        return "op", _plain(str(node.target))
    name = getattr(node.target, "__name__", str(node.target))
    known = any(getattr(room, name, None) is node.target for room in (torch, F, operator, torch._C._nn, Tensor))
    return "op", _plain(name) if known or node.target is getattr else f"?{name}"


def _plain(name: str) -> str:
    """The common name of an operation and its in-place forms: ``add_``, ``iadd`` and ``__add__`` are ``add``."""
    name = name.strip("_")
    return name[1:] if name in ("iadd", "isub", "imul", "itruediv") else name


# the operation of each module; a parameter that another operation uses is exposed
_OWN_OPERATIONS: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv1d",
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
    nn.ConvTranspose1d: "conv_transpose1d",
    nn.ConvTranspose2d: "conv_transpose2d",
    nn.ConvTranspose3d: "conv_transpose3d",
    nn.modules.batchnorm._BatchNorm: "batch_norm",
    nn.GroupNorm: "group_norm",
    nn.LayerNorm: "layer_norm",
    nn.PReLU: "prelu",
    nn.Embedding: "embedding",
}


def _export_steps(model: nn.Module, bound: inspect.BoundArguments) -> list[Step]:
    program = torch.export.export(model, bound.args, bound.kwargs)
    signature = program.graph_signature
    attributes = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    attributes |= signature.inputs_to_lifted_tensor_constants
    first_names = _first_names(model)
    steps = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        shape = tuple(map(int, value.shape)) if isinstance(value, Tensor) else None
        args, kwargs = node.args, node.kwargs
        if node.op == "placeholder":
            kind, name = ("attribute", attributes[node.name]) if node.name in attributes else ("input", node.name)
        elif node.op == "output":
            kind, name = "output", "output"
        else:
            kind, name = "op", _export_name(node.target)
            owner = _owner(model, name, [attributes[n.name] for n in node.all_input_nodes if n.name in attributes])
            if owner is not None:
                kind, name, kwargs = "module", first_names[id(model.get_submodule(owner))], {}
                args = tuple(n for n in node.all_input_nodes if n.name not in attributes)
        steps.append(Step(node, kind, name, tuple(args), dict(kwargs), shape))  # type: ignore[arg-type]
    return steps


def _export_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        name = target.overloadpacket.__name__
        return _plain(name) if target.namespace == "aten" else f"?{name}"
    return f"?{target.__name__}" if isinstance(target, torch._ops.HigherOrderOperator) else _plain(target.__name__)


def _owner(model: nn.Module, operation: str, attributes: list[str]) -> str | None:
    """The module whose operation on its parameters this is, or None."""
    owners = {attribute.rpartition(".")[0] for attribute in attributes}
    if len(owners) != 1:
        return None
    owner = owners.pop()
    module = model.get_submodule(owner)
    own = next((name for kind, name in _OWN_OPERATIONS.items() if isinstance(module, kind)), None)
    return owner if operation == own else None


def _first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every module, by its identity."""
    return {id(module): name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
