"""Counting the arithmetic before each random draw of a network, which decides how samples are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .. import batches, sampling
from ..kernels import convolution
from ..layers.contract import original
from ..layers.shell import StandIn
from ..layers.sparse import dense_path
from ..walk import modules, unwrapped

OWN_WEIGHTS = 2.0
FOLDED = 1.0
NARROW = 0.75
PLAIN = (bool, int, float, str, type(None))
FLOPS_A_CALL = 400_000
"""The arithmetic that a core does in the time of one call of an operation: 20 microseconds at 20 GFLOP/s."""


@dataclass(frozen=True)
class Probe:
    """The distribution of the arithmetic over a pass.

    prefix: the share before the first draw.
    sites: the random sites by their id, in the order of their first draws.
    before: for each site the share of the arithmetic before its first draw.
    after: for each site the cost of a sample under vmap after that draw, in passes.
    largest: values in the largest output of a module after the first draw, for one datum; of the whole model alone
        after the draw of a site that is `in_pieces`.
    narrow: the share of the arithmetic in convolutions that have a kernel for many samples.
    calls: the cost of calling the operations of a pass, in data: `FLOPS_A_CALL` each.

    Under vmap a sample with own weights costs its share of the arithmetic times `OWN_WEIGHTS`: benchmarks/predict.py
    finds 1.8 to 2.6 for the last block, the last stage or all of ResNet-18 (4 to 6 at 8 data and 512 channels, where
    the noise outweighs it and the wrong choice costs a fifth). If only norm layers differ, the samples are one larger
    batch (`FOLDED`). Convolutions that have a kernel for many samples cost less (`NARROW`), if all samples of the batch
    fit into one pass.
    """

    prefix: float
    sites: tuple[int, ...] = ()
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    largest: int = 0
    calls: float = 0.0
    narrow: float = 0.0

    def cost(self, samples: int, passes: int, depth: int = 0) -> float:
        """The cost of vectorised passes whose samples share the first ``depth`` sites; a loop costs ``samples``.

        >>> Probe(0.9, (1,), (0.9,), (0.2,)).cost(samples=100, passes=2)
        21.8
        """
        if depth >= len(self.sites):
            return passes if self.sites else samples
        return passes * self.before[depth] + samples * self.after[depth]


def fewest(model: nn.Module) -> int:
    """The least number of data in a pass: 2 for a BatchNorm without running statistics.

    >>> fewest(nn.BatchNorm1d(3)), fewest(nn.BatchNorm1d(3, track_running_stats=False))
    (1, 2)
    """
    layers = (original(module) for module in modules(model))
    return 2 if any(isinstance(m, _BatchNorm) and not m.track_running_stats for m in layers) else 1


def probe(model: nn.Module, inputs: Any, rows: int = 1) -> Probe:
    """Count the arithmetic of a pass of ``rows`` data; the sites of the model then know the shapes of their noise."""
    rows = min(rows, batches.size(inputs))
    model = unwrapped(model)  # torch warns of hooks on what it has compiled
    counter = FlopCounterMode(display=False)
    drawn: list[tuple[sampling.Site, int]] = []
    sizes, calls = [0], _Calls()

    def watch(site: sampling.Site) -> None:
        drawn.append((site, counter.get_total_flops()))

    def measure(module: nn.Module, args: Any, output: Any) -> None:
        if drawn and isinstance(output, Tensor) and (module is model or not drawn[-1][0].in_pieces):
            sizes.append(-(-output.numel() // rows))

    hook = register_module_forward_hook(measure)
    try:
        with sampling.using(estimator="weight"), counter, calls, sampling.watching(watch), dense_path():
            batches.call(model, batches.rows(inputs, 0, rows))
    finally:
        hook.remove()
    total = counter.get_total_flops()
    if not drawn or not total:
        return Probe(1.0 if total else 0.0)
    ends = [flops for _, flops in drawn[1:]] + [total]
    served = _narrow(model)
    each = [
        (FOLDED if site.folds else OWN_WEIGHTS) * (end - start) / total
        for (site, start), end in zip(drawn, ends, strict=True)
    ]
    first = {id(site): i for i, (site, _) in reversed(list(enumerate(drawn)))}
    order = sorted(first, key=lambda key: first[key])
    return Probe(
        drawn[0][1] / total,
        tuple(order),
        tuple(drawn[first[key]][1] / total for key in order),
        tuple(sum(each[first[key] :]) for key in order),
        max(sizes),
        calls.count * FLOPS_A_CALL * rows / total,
        sum(end - start for (site, start), end in zip(drawn, ends, strict=True) if id(site) in served) / total,
    )


def _narrow(model: nn.Module) -> set[int]:
    """The sites, by id, of layers whose convolutions have a kernel for many samples."""
    layers = [m for m in modules(model) if isinstance(m, StandIn) and convolution.narrow(m.shell)]
    served = (m for m in layers if all(p.dtype == torch.float32 and p.device.type == "cpu" for p in m.parameters()))
    return {id(site) for layer in served for site in sampling.sites(layer).values()}


class _Calls(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


_known: WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, Any]]] = WeakKeyDictionary()


def known(model: nn.Module) -> dict[Any, Any]:
    """The cache of a model's counts, cleared if its modules or their options have changed."""
    now = [
        (
            id(module),
            [v for v in module.__dict__.values() if type(v) in PLAIN],
            [_shape(p) for p in module._parameters.values()],
        )
        for module in modules(model)
    ]
    if model not in _known or _known[model][0] != now:
        _known[model] = now, {}
    return _known[model][1]


def _shape(parameter: Tensor | None) -> torch.Size | None:
    return None if parameter is None else parameter.shape


def signature(inputs: Any) -> Any:
    """The shapes of one datum, types and devices of inputs."""
    if isinstance(inputs, Tensor):
        return inputs.shape[1:], inputs.dtype, inputs.device
    if isinstance(inputs, Mapping):
        return tuple((key, signature(value)) for key, value in inputs.items())
    return tuple(map(signature, inputs)) if isinstance(inputs, (tuple, list)) else type(inputs)
