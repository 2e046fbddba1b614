"""The compiled path of a layer with a sparse weight: arithmetic at the nonzeros only.

The dense path, tensors with zeros in them, is what its results are tested against. It serves what the kernels do not:
other devices and precisions, compiled graphs, vmap, dilation, high densities.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..kernels import geometry, library, operation
from ..kernels.blocked import Blocked
from ..kernels.plan import Plan, plan
from ..posteriors.sparse import Sparse
from ..sampling import context
from .contract import BayesianLayer

if TYPE_CHECKING:
    from .bayes import BayesLayer

DENSE_ABOVE = 0.2
"""The density above which the dense path is faster,"""
FEW = 128
"""unless it is a convolution of no more than this many weights an output: so narrow, it is slow in any way."""
SIZES = 4
"""Number of image sizes whose plans a layer keeps; a plan takes as much memory as the weight."""
_paths = {"compiled": True}


@contextlib.contextmanager
def dense_path() -> Iterator[None]:
    """Run a block on the dense path: its operations are torch's own, which can be counted."""
    before, _paths["compiled"] = _paths["compiled"], False
    try:
        yield
    finally:
        _paths["compiled"] = before


def forward(layer: BayesLayer, x: Tensor, estimator: str) -> Tensor | None:
    """The layer's output by the kernels, blocked; None if the dense path has to compute it."""
    q: Any = layer.posteriors["weight"]
    if not suitable(layer, x):
        return None
    if estimator == "flipout" and q.gaussian and not context.mean_only:
        return None  # signs by datum: no kernel
    bias = layer._parameters.get("bias")
    if context.mean_only:
        return at_nonzeros(layer, x, q.active_mean(), bias)
    if estimator == "weight" or not q.gaussian:
        return at_nonzeros(layer, x, q.active_sample(), bias)
    seed = int(torch.randint(2**62, (), device="cpu"))  # from torch's generator: a seed repeats a run
    return at_nonzeros(layer, x, q.active_mean(), bias, q.active_std(), seed)


def suitable(layer: BayesLayer, x: Tensor) -> bool:
    """Whether the kernels serve this layer and this input."""
    # in this order: a compiler cannot trace the second
    return not _unsuitable_here(layer, x) and unsuitable(layer) is None


def at_nonzeros(
    layer: BayesLayer, x: Tensor, weight: Tensor, bias: Tensor | None, sigma: Tensor | None = None, seed: int = 0
) -> Tensor:
    """The layer's operation with these values (n,) at the active places, blocked; with noise where there is a sigma."""
    q: Any = layer.posteriors["weight"]
    shell = layer.shell
    if isinstance(shell, nn.Linear):
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        size = (1, rows.cell.positions if isinstance(rows, Blocked) else 1)
        shape: tuple[int, ...] = (len(rows), shell.out_features)
    else:
        rows, size = x, (x.shape[2], x.shape[3])
    ready = plan_of(layer, q, size)
    if not isinstance(shell, nn.Linear):
        shape = (len(x), q.shape[0], *ready.geometry.out_size)
    out = operation.apply(rows, weight, sigma, bias, ready, seed, shape)
    return out if len(shape) == x.dim() else out.view(*x.shape[:-1], shape[1])


def density(module: nn.Module) -> float:
    """The density of a layer's weight: 1 for layers that are not sparse."""
    q = module.posterior("weight") if isinstance(module, BayesianLayer) else None
    return q.density if isinstance(q, Sparse) else 1.0


def unsuitable(layer: BayesLayer) -> str | None:
    """Why a layer never takes the compiled path, or None if it can."""
    q = layer.posterior("weight")
    if not isinstance(q, Sparse):
        return "its weight is dense"
    if len(layer.posteriors) > 1:
        return "its bias is random"
    if (why := geometry.refusal(layer.shell)) is not None:
        return why
    narrow = len(q.shape) > 2 and len(q.index) <= FEW * q.shape[0]
    if q.density > DENSE_ABOVE and not narrow:
        return f"a density of {q.density:.0%} is faster dense"
    if (why := library.reason()) is not None:
        library.tell_once()
        return why
    if q.dtype != torch.float32 or q.device.type != "cpu":
        return f"kernels are for float32 on a CPU, not {q.dtype} on {q.device.type}"
    return None


def _unsuitable_here(layer: BayesLayer, x: Tensor) -> bool:
    """Whether this input, or what is running, needs the dense path, which also has the errors for wrong shapes."""
    return (
        torch.compiler.is_compiling()
        or not _paths["compiled"]
        or type(x) not in (Tensor, nn.Parameter, Blocked)  # someone else's tensor, or a traced value
        or torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]
        or torch._C._len_torch_dispatch_stack() > 0  # counters and the like want to see torch's operations
        or torch._C._get_tracing_state() is not None  # type: ignore[attr-defined]
        or torch.autograd.forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or x.layout != torch.strided
        or x.numel() == 0
        or not _fits(layer.shell, x)
    )


def _fits(shell: nn.Module, x: Tensor) -> bool:
    """Whether the layer can take a batch of this shape at all."""
    if isinstance(shell, nn.Linear):
        return x.dim() >= 2 and x.shape[-1] == shell.in_features
    if not isinstance(shell, nn.Conv2d) or x.dim() != 4 or x.shape[1] != shell.in_channels:
        return False
    padding = (0, 0) if isinstance(shell.padding, str) else shell.padding
    sizes = zip(x.shape[2:], shell.kernel_size, padding, strict=True)
    return all(n + 2 * p >= k for n, k, p in sizes)


@dataclass
class _Plans:
    """The plans of a layer by the size of its input, and what they were made for."""

    index: Tensor
    version: int
    places: Tensor
    made: dict[tuple[int, int], Plan] = field(default_factory=dict)


# beside the layers, not on them: a pass leaves no trace on a model, and copies and pickles take nothing along
_PLANS: weakref.WeakKeyDictionary[nn.Module, _Plans] = weakref.WeakKeyDictionary()


def plan_of(layer: BayesLayer, q: Sparse, size: tuple[int, int]) -> Plan:
    """The plan for inputs of a size; made anew when the active places have changed."""
    plans = _PLANS.get(layer)
    if plans is None or plans.index is not q.index or plans.version != q.index._version:
        # DDP writes buffers before every pass, the same numbers most of the time
        if plans is None or not torch.equal(plans.places, q.index):
            plans = _PLANS[layer] = _Plans(q.index, q.index._version, q.index.clone())
        plans.index, plans.version = q.index, q.index._version
    found = plans.made.pop(size, None)
    if found is None:
        if isinstance(layer.shell, nn.Linear):
            shape = geometry.of_linear(layer.shell.out_features, layer.shell.in_features, size)
        else:
            shape = geometry.of_conv(layer.shell, size)  # type: ignore[arg-type]
        found = plan(shape, q.index)
    plans.made[size] = found  # the last used is last
    if len(plans.made) > SIZES:
        plans.made.pop(next(iter(plans.made)), None)
    return found
