"""What vmap has batched, (samples, ...): kernels serve it directly.

The vmap rule of an autograd function would do, and takes longer than a small layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_vmap: Any = torch._C._functorch  # type: ignore[attr-defined]


def vectorised() -> bool:
    """Whether samples are being vectorised, by one vmap and nothing else, and without gradients."""
    return (
        not torch.compiler.is_compiling()
        and _vmap.maybe_current_level() == 1
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def is_batched(x: Tensor) -> bool:
    """Whether a tensor has samples of its own."""
    return _vmap.is_batchedtensor(x)  # type: ignore[no-any-return]


def served(x: Tensor) -> bool:
    """Whether kernels take such a tensor."""
    return type(x) in (Tensor, nn.Parameter) and x.dtype == torch.float32 and x.is_cpu and x.layout == torch.strided


def samples_of(x: Tensor) -> Tensor:
    """(samples, ...) of a batched tensor, (1, ...) of others."""
    return _vmap.get_unwrapped(x).movedim(_vmap.maybe_get_bdim(x), 0) if is_batched(x) else x.unsqueeze(0)


def batched(x: Tensor) -> Tensor:
    """The batched tensor of (samples, ...)."""
    return _vmap._add_batch_dim(x, 0, 1)  # type: ignore[no-any-return]
