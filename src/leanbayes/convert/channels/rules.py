"""Following a trace by rules for modules (modules.py) and operations (operations.py).

A rule takes the flow and a call and returns its result: a `Layout`, an `Opaque` tensor, or `Plain` for a value without
channels. A call without a rule fixes the channels of its arguments. `module_rule` adds rules for your own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from ...layers.contract import original
from ...sampling import Site
from ..trace import Step
from .flow import Count, Flow, Layout, Opaque, Plain, Sizes


@dataclass(frozen=True)
class Call:
    """A step with the results of earlier steps as arguments; module is None for an operation."""

    step: Step
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def values(self) -> list[Any]:
        """All arguments, also those in lists and slices."""
        return list(_flat([*self.args, *self.kwargs.values()]))

    @property
    def x(self) -> Any:
        """The first argument, by position or by name."""
        return next(iter([*self.args, *self.kwargs.values()]), None)

    def get(self, position: int, names: str, default: Any = None) -> Any:
        """An argument by its position or by one of its names."""
        if len(self.args) > position:
            return self.args[position]
        return next((self.kwargs[name] for name in names.split() if name in self.kwargs), default)


Rule = Callable[[Flow, Call], Any]
MODULES: dict[type[nn.Module], Rule] = {}
OPERATIONS: dict[str, Rule] = {}
SOURCES: set[Rule] = set()
PLAIN_ATTRIBUTES = ("ndim", "dtype", "device", "layout", "is_cuda", "requires_grad")  # these do not depend on channels


def module_rule(*kinds: type[nn.Module], source: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for modules of these classes, and of subclasses with the same forward.

    source: whether the rule produces channels, so that it is called for tensors without known channels too.
    """

    def register(rule: Rule) -> Rule:
        MODULES.update(dict.fromkeys(kinds, rule))
        if source:
            SOURCES.add(rule)
        return rule

    return register


def operation_rule(names: str, any_arguments: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for operations of these names (as in `Step.name`).

    any_arguments: whether the rule checks its arguments; otherwise its first is a layout, and none is a size of one.
    """

    def register(rule: Rule) -> Rule:
        def checked(flow: Flow, call: Call) -> Any:
            sizes = any(isinstance(value, (Sizes, Count)) for value in call.values)
            return rule(flow, call) if isinstance(call.x, Layout) and not sizes else not_followed(flow, call)

        OPERATIONS.update(dict.fromkeys(names.split(), rule if any_arguments else checked))
        return rule

    return register


def follow(model: nn.Module, steps: Iterable[Step]) -> Flow:
    """Follow the channels through a trace."""
    modules = dict(model.named_modules())
    flow = Flow()
    values: dict[fx.Node, Any] = {}
    for step in steps:
        module = original(modules[step.name]) if step.kind == "module" else None
        call = Call(step, module, _resolved(step.args, values), _resolved(step.kwargs, values))
        result = _result(flow, call)
        if isinstance(result, Layout) and step.shape is not None:
            if result.features not in (0, step.shape[result.dim]):  # broadcast beyond the channels it had
                result = not_followed(flow, call)
            else:
                result = replace(result, shape=step.shape, ndim=len(step.shape))
        values[step.node] = result
    flow.expose(modules)
    return flow


def not_followed(flow: Flow, call: Call, reason: str = "") -> Opaque:
    """The rule of calls without a rule: the channels of arguments are fixed, the result has no known channels."""
    what = call.step.name.lstrip("?")
    if call.module is not None:  # other calls of it must keep the sizes that this one needs
        flow.exposed[what] = _elsewhere(what)
        what = f"{type(call.module).__name__} '{what}'"
    return flow.opaque(reason or f"goes through {what}", call.values, call.step.shape)


def _elsewhere(module: str) -> str:
    return f"'{module}' is also called on a tensor whose channels are not known"


def _result(flow: Flow, call: Call) -> Any:
    step, values = call.step, call.values
    if step.kind == "input":
        return Opaque(f"comes from the model input '{step.name}'", step.shape)
    if step.kind == "attribute":
        constant = "tensor_constant" in step.name  # the name is the tracer's
        return Opaque("meets a constant tensor" if constant else f"meets '{step.name}'", step.shape, step.name)
    if step.kind == "output":
        return flow.opaque("is a model output", values)
    has_channels = any(isinstance(value, (Layout, Sizes, Count)) for value in values)
    if step.kind == "module":
        default = OPERATIONS["mul"] if isinstance(call.module, Site) else not_followed  # a site is a mask
        rule = next((MODULES[kind] for kind in type(call.module).__mro__ if kind in MODULES), default)
        if rule in SOURCES or isinstance(call.x, Layout):
            return rule(flow, call)
        if has_channels or rule is not_followed:
            return not_followed(flow, call)
        flow.exposed[step.name] = _elsewhere(step.name)
        return _without_channels(call)
    for value in values:
        if isinstance(value, Opaque) and value.attribute:
            owner = value.attribute.rpartition(".")[0]
            flow.exposed[owner] = f"the parameters of '{owner}' are also used by {step.name.lstrip('?')}"
    return OPERATIONS.get(step.name, not_followed)(flow, call) if has_channels else _without_channels(call)


def _without_channels(call: Call) -> Opaque | Plain:
    """The result of a call on inputs, attributes and numbers alone."""
    known = next((value for value in call.values if isinstance(value, Opaque)), None)
    if call.step.name == "getattr" and call.args[1] in ("shape", *PLAIN_ATTRIBUTES):
        return Plain()
    if call.step.name in ("size", "dim", "numel"):
        return Plain(is_batch_size=call.step.name == "size" and call.get(1, "dim") == 0)
    if known is not None:
        return Opaque(known.reason, call.step.shape)
    if call.step.shape is None and OPERATIONS.get(call.step.name) is not None:
        return Plain()  # arithmetic on numbers
    return Opaque(f"meets a tensor made by {call.step.name.lstrip('?')}", call.step.shape)


def _resolved(argument: Any, values: dict[fx.Node, Any]) -> Any:
    """An argument with other steps' results in place of their nodes."""
    if isinstance(argument, fx.Node):
        return values[argument]
    if isinstance(argument, (tuple, list)):
        return tuple(_resolved(a, values) for a in argument)
    if isinstance(argument, dict):
        return {k: _resolved(v, values) for k, v in argument.items()}
    if isinstance(argument, slice):
        return slice(*(_resolved(a, values) for a in (argument.start, argument.stop, argument.step)))
    return argument


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        elif isinstance(argument, dict):
            yield from _flat(argument.values())
        elif isinstance(argument, slice):
            yield from (argument.start, argument.stop, argument.step)
        else:
            yield argument
