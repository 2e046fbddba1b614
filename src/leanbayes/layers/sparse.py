"""The compiled path of a layer whose weight exists at a few places only: arithmetic at the nonzeros, nothing else.

The other path, dense tensors with zeros in them, is the twin that every result is compared with; it serves what the
kernels do not: other devices and precisions, compiled graphs, vmap, dilation, high densities.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..kernels import geometry, library, sparse
from ..kernels.blocked import blocked
from ..kernels.plan import Plan, plan
from ..posteriors.sparse import Sparse
from ..sampling import context

if TYPE_CHECKING:
    from .bayes import BayesLayer

DENSE_ABOVE = 0.2
"""The density above which the dense path is faster."""
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
    """The layer's output by the kernels, blocked; None where the dense path has to do it."""
    q: Any = layer.posteriors["weight"]
    if _unsuitable_here(layer, x) or unsuitable(layer) is not None:  # in this order: a compiler cannot trace the second
        return None
    shell, bias = layer.shell, layer._parameters.get("bias")
    if isinstance(shell, nn.Linear):
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        inputs, shape = blocked(rows), (*x.shape[:-1], shell.out_features)
        ready = plan_of(layer, q, (1, 1))
    else:
        inputs, shape = blocked(x), None
        ready = plan_of(layer, q, (x.shape[2], x.shape[3]))
    if context.mean_only:
        out = sparse.linear(inputs.blocks, q.active_mean(), bias, ready)
    elif estimator == "weight" or not q.gaussian:
        out = sparse.linear(inputs.blocks, q.active_sample(), bias, ready)
    else:
        active = q.active()
        seed = int(torch.randint(2**62, ()))  # torch's generator decides: a seed of the user's repeats a run
        out = sparse.local(inputs.blocks, active.mean, active.std, bias, ready, seed)
    if shape is None:
        return inputs.with_blocks(out, ready.geometry.out_size)
    result = inputs.with_blocks(out, ())
    return result if len(shape) == 2 else result.plain().view(shape)


def density(module: nn.Module) -> float:
    """The share of a layer's weight that is there: 1 for anything but a sparse layer."""
    q = module._modules["posteriors"]._modules.get("weight") if "posteriors" in module._modules else None  # type: ignore
    return q.density if isinstance(q, Sparse) else 1.0


def unsuitable(layer: BayesLayer) -> str | None:
    """Why a layer never takes the compiled path, or None where it does."""
    q = layer._posterior("weight")
    if not isinstance(q, Sparse):
        return "its weight is dense"
    if len(layer.posteriors) > 1:
        return "its bias is random"
    if (why := geometry.refusal(layer.shell)) is not None:
        return why
    if q.density > DENSE_ABOVE:
        return f"a density of {q.density:.0%} is faster dense"
    if (why := library.reason()) is not None:
        library.tell_once()
        return why
    if q.dtype != torch.float32 or q.device.type != "cpu":
        return f"kernels are for float32 on a CPU, not {q.dtype} on {q.device.type}"
    return None


def _unsuitable_here(layer: BayesLayer, x: Tensor) -> bool:
    """Whether this input, or what is running, needs the dense path."""
    return (
        torch.compiler.is_compiling()
        or not _paths["compiled"]
        or torch._C._functorch.maybe_current_level() is not None  # type: ignore[attr-defined]
        or torch.is_autocast_enabled("cpu")
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or x.dim() < (2 if isinstance(layer.shell, nn.Linear) else 4)  # without a batch
        or x.numel() == 0
    )


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
    if size not in plans.made:
        if isinstance(layer.shell, nn.Linear):
            found = geometry.of_linear(layer.shell.out_features, layer.shell.in_features)
        else:
            found = geometry.of_conv(layer.shell, size)  # type: ignore[arg-type]
        plans.made[size] = plan(found, q.index)
    return plans.made[size]
