"""What a model costs: parameters, multiply-accumulates, bytes; layer by layer and in total.

Three kinds of numbers, never one for another. Nominal: `Cost.macs`, `training_flops` and `inference_flops` follow from
shapes and densities, as papers count; whether a machine gains by them is another question. Stored: `Cost.bytes` and
`training_bytes` are the sizes of tensors that exist. Measured: `seconds_of` runs a clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from . import batches
from .convert.trace import original, untouched
from .errors import ConfigError, DataError
from .layers.dropout import DropoutMask
from .layers.sparse import dense_path, density, unsuitable
from .posteriors.assignment import Assignment
from .posteriors.base import Posterior
from .sampling import taking_part, watching
from .undisturbed import undisturbed


@dataclass(frozen=True)
class LayerCost:
    """The share of one module; the numbers mean what they mean in `Cost`.

    passes: how often a forward pass in training does these MACs: 2 where a mean and a variance (or a deviation) are
    computed side by side, as local reparameterisation and Flipout do, else 1.
    path: of a layer with a sparse weight alone: "compiled", which computes at the nonzeros, or "dense: " and why; then
    the MACs are nominal, and the machine does those of the whole tensor.
    """

    name: str
    kind: str
    parameters: int
    active_parameters: int
    macs: int
    bytes: int
    passes: int = 1
    path: str = ""


@dataclass(frozen=True)
class Cost:
    """What a model costs; the layers' shares sum to the totals.

    parameters: stored numbers, a tensor shared by several layers counted once. A Gaussian weight has two.
    active_parameters: those still in use, as modules with ``active_parameters()`` say (pruned posteriors); all of the
    others. A stored zero counts as active: only a mask makes it otherwise.
    macs: multiply-accumulates of matrix products and convolutions in one forward pass for one datum at one draw of the
    weights (their means where there are any): the count for the example batch over its size. Of a sparse weight those
    at its nonzeros.
    bytes: of parameters and buffers. sites: how many independent random tensors a draw needs.
    plain_parameters: those of the network that is not Bayesian.
    random_numbers: how many a draw of the whole network takes: what it needs in memory beside parameters.
    ensemble_log10: the logarithm of how many networks can be drawn: K to the number of indices for patches, 2 to the
    number of masked inputs for dropout, the members of an ensemble; infinite for continuous posteriors, 0 for one
    network (ensemble model patching, table 3).
    """

    parameters: int
    trainable_parameters: int
    active_parameters: int
    macs: int
    bytes: int
    sites: int
    batch_size: int
    layers: tuple[LayerCost, ...] = ()
    plain_parameters: int = 0
    random_numbers: int = 0
    ensemble_log10: float = 0.0

    @property
    def overhead(self) -> float:
        """Parameters beyond those of the plain network, as a share of these."""
        return self.parameters / self.plain_parameters - 1 if self.plain_parameters else 0.0

    def training_flops(self, data: int = 1, epochs: int = 1) -> int:
        """Nominal operations of training: 2 a MAC, times the layer's passes, times 3 for forward and backward.

        As sparse subspace VI counts: dense VI of ResNet-18 on 50,000 images of CIFAR-10 for 200 epochs has
        12 * 555.4M * 50,000 * 200 = 6.67e16. Updates of masks and the optimiser's own arithmetic are left out, there
        and here.
        """
        return 6 * data * epochs * sum(layer.passes * layer.macs for layer in self.layers)

    def inference_flops(self, data: int = 1, samples: int = 1) -> int:
        """Nominal operations of prediction: 2 a MAC for every datum and every whole draw of the weights."""
        return 2 * data * samples * self.macs

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "layers": [dataclasses.asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        rows = [("layer", "kind", "parameters", "active", "MACs", "bytes")]
        for x in (*self.layers, LayerCost("total", "", self.parameters, self.active_parameters, self.macs, self.bytes)):
            numbers = (x.parameters, x.active_parameters, x.macs, x.bytes)
            rows.append((x.name, x.kind, *(f"{n:,}" for n in numbers)))  # type: ignore[arg-type]
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = [
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        rule = "-" * len(lines[0])
        notes = [
            f"{self.trainable_parameters:,} parameters are trainable; {self.sites} random sites; MACs are for one datum"
        ]
        if self.sites:
            size = "infinitely many" if math.isinf(self.ensemble_log10) else f"10^{self.ensemble_log10:.4g}"
            notes.append(f"{100 * self.overhead:.3g} % more parameters than the plain network; {size} networks")
        if sparse := [layer for layer in self.layers if layer.path]:
            slow = [f"  {x.name}: {x.path.removeprefix('dense: ')}" for x in sparse if x.path != "compiled"]
            notes.append(f"{len(sparse) - len(slow)} of {len(sparse)} sparse layers take the compiled path")
            notes += ["the others compute as if they were dense:", *slow] if slow else []
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *notes])


@dataclass(frozen=True)
class TrainingBytes:
    """What a model in training stores between two steps, in bytes; activations come on top while a step runs.

    buffers: the indices of sparse weights, the statistics of BatchNorm. optimizer: its state.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All four."""
        return self.parameters + self.buffers + self.gradients + self.optimizer


def cost(model: nn.Module, example_input: Any) -> Cost:
    """Count what a model, Bayesian or plain, costs; it runs once, in eval mode, and is left as it was.

    example_input: a batch of inputs: a tensor, a tuple of positional arguments or a mapping of named ones.

    >>> found = cost(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(8, 4))
    >>> found.parameters, found.macs, found.bytes
    (23, 18, 92)
    """
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
        states = [_states(module) for module in taking_part(model) if getattr(module, "is_site", False)]
    layers = tuple(_layers(model, {module: round(n * density(module)) for module, n in macs.items()}, size))
    return Cost(
        parameters=sum(layer.parameters for layer in layers),
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        active_parameters=sum(layer.active_parameters for layer in layers),
        macs=sum(layer.macs for layer in layers),
        bytes=sum(layer.bytes for layer in layers),
        sites=sum(getattr(module, "is_site", False) for module in taking_part(model)),
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
        if isinstance(module, Posterior) or getattr(module, "is_site", False):
            inside.update(id(part) for part in module.modules())
            found[id(module)] = math.prod(module.shape) if isinstance(module, Posterior) else 0
        elif id(module) not in inside:
            found.update({id(p): p.numel() for p in module._parameters.values() if p is not None})
    return sum(found.values())


def training_bytes(model: nn.Module, optimizer: Optimizer) -> TrainingBytes:
    """The bytes of parameters, buffers, gradients and optimiser state that exist now; shared storage counts once.

    Call it between ``optimizer.step()`` and the next ``zero_grad()``: before, gradients and state are not there yet.

    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    >>> training_bytes(model, optimizer)
    TrainingBytes(parameters=60, buffers=0, gradients=60, optimizer=60)
    """
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"optimizer: expected a torch optimiser, received {type(optimizer).__name__}")
    own = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in own for p in held):
        raise ConfigError(
            "optimizer: expected one that trains this model, received one that has none of its parameters"
        )
    if all(p.grad is None for p in held):
        raise DataError("training_bytes: expected gradients, found none; call it after a step, before zero_grad()")
    seen: set[int] = set()
    return TrainingBytes(
        parameters=_stored(model.parameters(), seen),
        buffers=_stored(model.buffers(), seen),
        gradients=_stored((p.grad for p in model.parameters()), seen),
        optimizer=_stored((v for state in optimizer.state.values() for v in state.values()), seen),
    )


def seconds_of(run: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of a call by the clock, in seconds, after one call that is not timed.

    To compare two, time them in turns (``benchmarks/``): a machine is not the same from one minute to the next.

    >>> 0 <= seconds_of(lambda: None) < 1
    True
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ConfigError(f"repeats: expected a whole number of 1 or more, received {repeats!r}")
    run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


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


def _layers(model: nn.Module, macs: dict[nn.Module, int], batch_size: int) -> Iterator[LayerCost]:
    """A row for every module that holds or does something itself, in the model's order; nothing is counted twice."""
    seen: set[int] = set()  # tensors
    inside: set[nn.Module] = set()  # modules that are part of a row
    for name, module in model.named_modules():
        if module in inside:
            continue
        shell = original(module)
        members = list(module.modules()) if shell is not module or hasattr(module, "active_parameters") else [module]
        members = [member for member in members if member not in inside]
        inside.update(members)
        active = _active(members, set(seen))
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
            path=next(filter(None, map(_path, members)), ""),
        )
        if row.bytes or row.macs:
            yield row


@contextlib.contextmanager
def _shapes_known(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Run a block in which masks whose shape only an input tells know it."""
    unknown: list[Any] = [m for m in taking_part(model) if getattr(m, "learns_shape", False) and not m.shapes]
    if unknown:
        with undisturbed(model), watching(lambda site: None):
            batches.call(model, inputs)
    try:
        yield
    finally:
        for site in unknown:
            site.shapes.clear()


def _states(site: Any) -> tuple[int, float]:
    """How many random numbers a site takes, and the logarithm of how many values it has."""
    if isinstance(site, Assignment):
        return math.prod(site.shape), math.prod(site.shape) * math.log10(site.components)
    if isinstance(site, Posterior):
        count = site.loc.numel() if getattr(site, "is_sparse", False) else math.prod(site.shape)  # type: ignore[union-attr, operator]
        return count, math.inf
    if isinstance(site, DropoutMask):
        count = sum(map(math.prod, site.shapes))
        return count, count * math.log10(2) if site.rate else 0.0
    return site.noise(torch.Generator()).numel(), math.log10(getattr(site, "period", math.inf))


def _passes(module: Any) -> int:
    """2 for a layer whose training computes a mean and a variance, else 1."""
    weight = module._modules["posteriors"]._modules.get("weight") if "posteriors" in module._modules else None
    return 2 if getattr(weight, "gaussian", False) and getattr(module, "estimator", "") in ("local", "flipout") else 1


def _path(module: Any) -> str:
    """Which way a layer with a sparse weight computes."""
    weight = module._modules["posteriors"]._modules.get("weight") if "posteriors" in module._modules else None
    if not getattr(weight, "is_sparse", False):
        return ""
    return "compiled" if (why := unsuitable(module)) is None else f"dense: {why}"


def _stored(tensors: Iterable[Any], seen: set[int]) -> int:
    """Bytes of the storages behind tensors, those not met before; anything but a tensor takes none."""
    total = 0
    for t in tensors:
        if not isinstance(t, Tensor) or t.numel() == 0:
            continue
        storage = t.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _active(members: list[nn.Module], seen: set[int]) -> int:
    """The parameters in use: a module that can say so answers for everything inside it."""
    count, answered = 0, set[nn.Module]()
    for member in members:
        if member in answered:
            continue
        own = _new(member.parameters() if hasattr(member, "active_parameters") else member._parameters.values(), seen)
        if hasattr(member, "active_parameters"):
            answered.update(member.modules())
            count += member.active_parameters() if own else 0  # type: ignore[operator]
        else:
            count += sum(p.numel() for p in own)
    return count


def _new(tensors: Iterable[Tensor | None], seen: set[int]) -> list[Tensor]:
    """Those not met before; a tensor that two layers share belongs to the first."""
    fresh = {id(t): t for t in tensors if t is not None and id(t) not in seen}
    seen.update(fresh)
    return list(fresh.values())
