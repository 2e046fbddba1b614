"""The mean and variance of dropout: rules of `leanbayes.prediction.moments`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...prediction.moments import Moments, module_rule
from ...prediction.moments.layers import filter_of
from ...prediction.moments.linear import Weight, neighbours, weighted
from ...prediction.moments.waiting import share_of
from .layer import DropoutAlways, DropoutLayer, DropoutMask


@module_rule(DropoutMask, DropoutAlways)
def masked(mask: DropoutMask, x: Moments | Tensor) -> Moments:
    """x b / (1 - rate) with a Bernoulli b: the mean stays, and the variance grows by rate / (1 - rate) E[x^2].

    If whole channels are dropped, b is the same for all of their positions.
    """
    x = x if isinstance(x, Moments) else Moments.fixed(x)
    more = mask.rate / (1 - mask.rate)
    variance = torch.add(x.variance, x.square, alpha=more)
    if not mask.spatial or x.mean.ndim != mask.spatial + 2:
        return Moments(x.mean, variance)
    dims = tuple(range(2, x.mean.ndim))
    before = share_of(x) * x.variance.mean(dims, keepdim=True)
    products = torch.stack([x.mean.mean(dims).square(), neighbours(x.mean, 1)]).view_as(before)
    total = variance.mean(dims, keepdim=True).clamp_min(torch.finfo(variance.dtype).tiny)
    return Moments(x.mean, variance, ((before * (1 + more) + more * products) / total).clamp(0, 1))


@module_rule(DropoutLayer)
def _dropout_layer(layer: DropoutLayer, x: Moments | Tensor, *extra: Any, **named: Any) -> Moments:
    """The layer's operation, which is certain, on masked inputs."""
    weight: Tensor = layer.weight

    def apply(t: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return layer.operation.apply(layer.shell, t, w, b, *extra, **named)

    known = Weight(weight, None, layer._parameters.get("bias"))
    return weighted(apply, masked(layer.mask, x), known, filter_of(layer.shell, weight))
