"""Rules of norm layers.

BatchNorm with running statistics is a factor and a shift by channel: exact. The statistics of all others (LayerNorm,
GroupNorm, InstanceNorm, RMSNorm) are random themselves; they are taken for certain, at their expected squares, which is
close where a statistic averages over many numbers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .law import Moments
from .rules import NoRule, rule
from .waiting import Affine, scaled


@rule("batch_norm")
def _batch_norm(
    x: Moments, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: Any = 0.1, eps: float = 1e-5, *rest: Any,
) -> Affine:  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise NoRule("its statistics are those of the batch")
    factor = (running_var + eps).rsqrt()
    factor = factor if weight is None else factor * weight
    shift = -running_mean * factor if bias is None else bias - running_mean * factor
    return Affine(x, factor, shift)


def _standardised(x: Moments, dims: tuple[int, ...], eps: float) -> Moments:
    """(x - average) / spread, over these dimensions."""
    count = math.prod(x.mean.shape[d] for d in dims)
    centre = x.mean.mean(dims, keepdim=True)
    uncertain = x.variance.mean(dims, keepdim=True)
    spread = (x.mean - centre).square().mean(dims, keepdim=True) + uncertain * (1 - 1 / count)
    factor = (spread + eps).rsqrt()
    # less the average, which has 1 / count of the noise of each number
    variance = x.variance * (1 - 2 / count) + uncertain / count
    return Moments((x.mean - centre) * factor, variance.clamp_min(0) * factor.square())


def _affine(x: Moments, weight: Tensor | None, bias: Tensor | None) -> Moments:
    if weight is None:
        return x
    return scaled(x, weight, torch.zeros_like(weight) if bias is None else bias)


@rule("layer_norm")
def _layer_norm(
    x: Moments, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    *rest: Any,
) -> Moments:  # fmt: skip
    dims = tuple(range(x.mean.ndim - len(normalized_shape), x.mean.ndim))
    return _affine(_standardised(x, dims, eps), weight, bias)


@rule("rms_norm")
def _rms_norm(x: Moments, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Moments:
    dims = tuple(range(x.mean.ndim - len(normalized_shape), x.mean.ndim))
    eps = torch.finfo(x.mean.dtype).eps if eps is None else eps
    scale = (x.square.mean(dims, keepdim=True) + eps).rsqrt()
    return _affine(Moments(x.mean * scale, x.variance * scale.square()), weight, None)


@rule("group_norm")
def _group_norm(
    x: Moments, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    *rest: Any,
) -> Moments:  # fmt: skip
    grouped = x.map(lambda part: part.unflatten(1, (num_groups, -1)))
    dims = tuple(range(2, grouped.mean.ndim))
    found = _standardised(grouped, dims, eps).map(lambda part: part.flatten(1, 2))
    return _by_channel(found, weight, bias)


@rule("instance_norm")
def _instance_norm(
    x: Moments, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: Any = 0.1, eps: float = 1e-5, *rest: Any,
) -> Moments | Affine:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    return _by_channel(_standardised(x, tuple(range(2, x.mean.ndim)), eps), weight, bias)


def _by_channel(x: Moments, weight: Tensor | None, bias: Tensor | None) -> Moments:
    shape = (-1, *(1,) * (x.mean.ndim - 2))
    return _affine(x, *(None if part is None else part.view(shape) for part in (weight, bias)))
