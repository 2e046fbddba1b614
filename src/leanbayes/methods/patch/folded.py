"""BatchNorm with a scale and shift for every sample, computed as one larger batch.

`torch.func.vmap` over samples whose gamma and beta differ splits BatchNorm into a dozen elementwise operations, each a
pass over all activations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_functorch = torch._C._functorch  # type: ignore[attr-defined]


def running() -> bool:
    """Whether vmap is running."""
    return _functorch.maybe_current_level() is not None


def is_batched(t: Tensor | None) -> bool:
    """Whether a tensor differs between the samples that vmap runs over."""
    return t is not None and _functorch.is_batchedtensor(t)


def batch_norm(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor | None:
    """torch's BatchNorm in evaluation mode under vmap, as one call; None if that is not possible.

    Samples, data and channels become the channels of a single datum, (1, S * N * C, ...).

    >>> x, weight = torch.randn(4, 2, 3, 5), torch.randn(4, 3)
    >>> plain = lambda x, w: F.batch_norm(x, torch.zeros(3), torch.ones(3), w)
    >>> folded = lambda x, w: batch_norm(x, torch.zeros(3), torch.ones(3), w, None, 1e-5)
    >>> same = [torch.func.vmap(f)(x, weight) for f in (plain, folded)]
    >>> torch.allclose(*same, atol=1e-6)
    True
    """
    level = _functorch.maybe_current_level()
    if level is None or not (is_batched(weight) or is_batched(bias) or is_batched(mean)) or x.ndim < 3:
        return None
    opened: list[tuple[Any, int | None]] = [
        (t, None) if t is None else _functorch._unwrap_batched(t, level) for t in (x, mean, var, weight, bias)
    ]
    if any(is_batched(t) for t, _ in opened):  # vmap inside vmap
        return None
    count = next(t.shape[dim] for t, dim in opened if dim is not None)
    inputs, *each = [_samples_first(t, dim, count) for t, dim in opened]
    assert inputs is not None
    data, channels = inputs.shape[1:3]
    rows = [None if t is None else t.unsqueeze(1).expand(count, data, channels).reshape(-1) for t in each]
    means, variances, weights, biases = rows
    flat = inputs.reshape(1, count * data * channels, -1)
    out = F.batch_norm(flat, means, variances, weights, biases, training=False, eps=eps)
    return _functorch._add_batch_dim(out.reshape(inputs.shape), 0, level)  # type: ignore[no-any-return]


def _samples_first(t: Tensor | None, dim: int | None, count: int) -> Tensor | None:
    if t is None:
        return None
    return t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)
