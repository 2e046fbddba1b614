"""Counting what a model costs, layer by layer: it runs once under torch's counter of operations."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from .. import batches, checks
from ..convert.trace import untouched
from ..errors import ConversionError, DataError
from ..eval_mode import undisturbed
from ..layers.bayes import BayesLayer
from ..layers.contract import option, original
from ..layers.sparse import dense_path, density, unsuitable
from ..ordering.unit import OrderingUnit
from ..posteriors.base import Posterior
from ..sampling import Site, taking_part, watching
from .bill import Cost, LayerCost
from .shares import Share, shares


def cost(model: nn.Module, example_input: Any) -> Cost:
    """Count the cost of a model, Bayesian or plain, in one pass in eval mode; the model is not changed.

    example_input: a batch of inputs: a tensor, a tuple of positional arguments or a mapping of named ones.

    >>> found = cost(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(8, 4))
    >>> found.parameters, found.macs, found.bytes
    (23, 18, 92)
    """
    checks.module("model", model, error=ConversionError)
    example_input = batches.accept(example_input, model, name="example_input", arguments=True)
    size = batches.size(example_input)
    if size == 0:
        raise DataError("cost: expected a batch of one or more inputs, received an empty one")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with untouched(model), _every_operation_seen(model), _macs_by_module(model) as macs, dense_path():
        try:
            batches.call(model, batches.to(example_input, device))
        except Exception as error:  # whatever a forward may raise on inputs that do not fit
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"cost: {type(model).__name__} cannot run on the example input: {first}; check its shape, dtype and "
                f"how many arguments forward takes"
            ) from error
    with _shapes_known(model, batches.to(batches.rows(example_input, 0, 1), device)):
        states = [site.states() for site in _sites(model)]
    masked = shares(model, masked=True)
    for module in macs:
        macs[module] = round(macs[module] * density(module) * masked.get(module, Share()).of(2))
    layers = tuple(_layers(model, macs, shares(model), size))
    return Cost(
        parameters=sum(layer.parameters for layer in layers),
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        active_parameters=sum(layer.active_parameters for layer in layers),
        macs=sum(layer.macs for layer in layers),
        bytes=sum(layer.bytes for layer in layers),
        sites=len(_sites(model)),
        batch_size=size,
        layers=layers,
        plain_parameters=plain_parameters(model),
        random_numbers=sum(n for n, _ in states),
        ensemble_log10=math.fsum(log10 for _, log10 in states),
    )


def plain_parameters(model: nn.Module) -> int:
    """The parameters that the network has without its posteriors, one number for a weight; tied ones count once.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> plain_parameters(model), sum(p.numel() for p in model.parameters())
    (15, 30)
    """
    found: dict[int, int] = {}
    inside: set[int] = set()
    for module in taking_part(model):
        if isinstance(module, Site):
            inside.update(id(part) for part in module.modules())
            found[id(module)] = math.prod(module.shape) if isinstance(module, Posterior) else 0
        elif id(module) not in inside:
            found.update({id(p): p.numel() for p in module._parameters.values() if p is not None})
    return sum(found.values())


@contextlib.contextmanager
def _every_operation_seen(model: nn.Module) -> Iterator[None]:
    """Switch off the fused attention and recurrent kernels: what happens inside of them cannot be counted."""
    recurrent = torch.backends.mkldnn.enabled
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):  # convolutions are faster with it
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.enabled = recurrent


@contextlib.contextmanager
def _macs_by_module(model: nn.Module) -> Iterator[dict[nn.Module, int]]:
    """Yield what will hold the multiply-accumulates of every module, without those of the submodules it calls."""
    own = dict.fromkeys(model.modules(), 0)
    counter = FlopCounterMode(display=False)
    stack = [0]  # for every module being run, what the modules it called have cost so far
    starts: list[int] = []

    def enter(module: nn.Module, args: Any) -> None:
        if module not in own:  # called but not registered: counted where it is called
            return
        starts.append(counter.get_total_flops())
        stack.append(0)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if module not in own:
            return
        whole = counter.get_total_flops() - starts.pop()
        own[module] += (whole - stack.pop()) // 2  # a multiply-accumulate is two operations
        stack[-1] += whole

    with counter:
        # global hooks: the model's own are not touched
        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield own
        finally:
            for handle in handles:
                handle.remove()


def _layers(
    model: nn.Module, macs: dict[nn.Module, int], kept: dict[nn.Module, Share], batch_size: int
) -> Iterator[LayerCost]:
    """A row for every module with parameters or operations of its own, in the model's order."""
    seen: set[int] = set()  # tensors
    inside: set[nn.Module] = set()  # modules that are part of a row
    for name, module in model.named_modules():
        if module in inside:
            continue
        shell = original(module)
        members = list(module.modules()) if shell is not module or option(module, "active_parameters") else [module]
        members = [member for member in members if member not in inside]
        inside.update(members)
        active = _active(members, set(seen), kept.get(module, Share()))
        parameters = _new([p for member in members for p in member._parameters.values()], seen)
        buffers = _new([b for member in members for b in member._buffers.values()], seen)
        row = LayerCost(
            name=name or type(model).__name__,
            kind=type(module).__name__ if shell is module else f"{type(module).__name__}({type(shell).__name__})",
            parameters=sum(p.numel() for p in parameters),
            active_parameters=active,
            macs=round(sum(macs[member] for member in members) / batch_size),
            bytes=sum(t.numel() * t.itemsize for t in (*parameters, *buffers)),
            passes=max(map(_passes, members)),
            path=next(filter(None, (_path(member, called=macs[member] > 0) for member in members)), ""),
        )
        if row.bytes or row.macs:
            yield row


@contextlib.contextmanager
def _shapes_known(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Run a block in which masks learn their shape from the input."""
    unknown = [site for site in _sites(model) if site.learns_shape and not site.shapes]
    if unknown:
        with undisturbed(model), watching(lambda site: None):
            batches.call(model, inputs)
    try:
        yield
    finally:
        for site in unknown:
            site.shapes.clear()


def _sites(model: nn.Module) -> list[Site]:
    """The random sites that a draw concerns."""
    return [module for module in taking_part(model) if isinstance(module, Site) and module.is_site]


def _passes(module: nn.Module) -> int:
    """2 for a layer whose training computes a mean and a variance, else 1."""
    weight = module.posterior("weight") if isinstance(module, BayesLayer) else None
    noisy = weight is not None and weight.gaussian
    return 2 if noisy and isinstance(module, BayesLayer) and module.estimator in ("local", "flipout") else 1


def _path(module: nn.Module, called: bool) -> str:
    """Which way a layer with a sparse weight computes."""
    weight = module.posterior("weight") if isinstance(module, BayesLayer) else None
    if weight is None or not weight.is_sparse or not isinstance(module, BayesLayer):
        return ""
    if not called:
        return "dense: its weight is read by another module, which does not call it"
    return "compiled" if (why := unsuitable(module)) is None else f"dense: {why}"


def _active(members: list[nn.Module], seen: set[int], kept: Share) -> int:
    """The parameters in use: as a module says for all inside it, times the share that a width keeps."""
    count, answered = 0, set[nn.Module]()
    for member in members:
        if member in answered:
            continue
        counter = option(member, "active_parameters")  # of any module that can say so, a user's too
        number = None if counter is None else counter()
        if number is not None:
            own = _new(member.parameters(), seen)
            answered.update(member.modules())
            dimensions = len(member.shape) if isinstance(member, Posterior) else 0
            count += round((number if own else 0) * kept.of(dimensions))
        else:
            share = Share() if isinstance(member, OrderingUnit) else kept  # the tails are of all widths
            count += sum(round(p.numel() * share.of(p.ndim)) for p in _new(member._parameters.values(), seen))
    return count


def _new(tensors: Iterable[Tensor | None], seen: set[int]) -> list[Tensor]:
    """Those not met before; a tensor that two layers share belongs to the first."""
    fresh = {id(t): t for t in tensors if t is not None and id(t) not in seen}
    seen.update(fresh)
    return list(fresh.values())
