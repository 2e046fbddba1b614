"""Operations that wait for what comes behind them, so that one pass over memory does several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.gaussian import Terms
from . import across
from .law import Draws, Moments


@dataclass
class Affine:
    """factor x + shift, numbers by channel, plus another term; independent of x."""

    source: Moments
    factor: Tensor | None = None
    shift: Tensor | None = None
    other: Moments | None = None

    @property
    def mean(self) -> Tensor:
        """Has the shape, dtype and device of the result."""
        return self.source.mean

    def terms(self) -> Terms:
        """For a kernel."""
        other = (None, None) if self.other is None else (self.other.mean, self.other.variance)
        return Terms(self.source.mean, self.source.variance, self.factor, self.shift, *other)

    def done(self) -> Moments:
        """The result."""
        x = self.source
        if self.factor is not None:
            shape = (-1, *(1,) * (x.mean.ndim - 2))
            sums = across.scaled(x.across, self.factor)
            x = scaled(x, self.factor.view(shape), None if self.shift is None else self.shift.view(shape))
            x.across = sums
        return x if self.other is None else _sum(x, self.other)


@dataclass
class Pending:
    """A rectifier lets a max pooling that follows come first.

    Both are monotone, so that the result is the same; but the maximum is then of Gaussians, which its formula assumes,
    and fewer numbers are left to rectify.
    """

    source: Moments | Affine
    rule: Callable[[Any], Moments]

    @property
    def mean(self) -> Tensor:
        """Has the shape, dtype and device of the result."""
        return self.source.mean

    def done(self) -> Moments:
        """The result."""
        return self.rule(self.source)


Law = Moments | Affine | Pending | Draws


def computed(x: Moments | Affine | Pending) -> Moments:
    """What waits, done."""
    return x if isinstance(x, Moments) else x.done()


def scaled(x: Moments, factor: Any, shift: Any = None) -> Moments:
    """factor x + shift, both certain, by number or by channel."""
    mean = x.mean * factor if shift is None else torch.addcmul(shift, x.mean, factor)
    same = mean.shape == x.mean.shape
    varies = isinstance(factor, Tensor) and mean.ndim > 2 and any(n > 1 for n in factor.shape[2 - mean.ndim :])
    share = x.share if same and not varies else None
    return Moments(mean, x.variance * factor**2, share)


def _sum(x: Moments, other: Moments) -> Moments:
    if x.mean.ndim < 3 or (x.share is None and other.share is None):
        return Moments(x.mean + other.mean, x.variance + other.variance, across=across.added(x.across, other.across))
    dims = tuple(range(2, x.mean.ndim))
    sizes = (part.variance.mean(dims, keepdim=True) for part in (x, other))
    share = mixed(x, other, *sizes)
    return Moments(x.mean + other.mean, x.variance + other.variance, share, None, across.added(x.across, other.across))


def mixed(x: Moments, other: Moments, first: Tensor, second: Tensor) -> Tensor | None:
    """The correlations of positions in a sum of terms of such variances, (batch, channels, 1, ...)."""
    if x.share is None and other.share is None:
        return None
    total = (first + second).clamp_min(torch.finfo(first.dtype).tiny)
    return (share_of(x) * first + share_of(other) * second) / total


def share_of(x: Moments) -> Tensor:
    """The correlations of positions, (2, batch, channels, 1, ...), zeros where there are none."""
    return x.mean.new_zeros(2, *x.mean.shape[:2], *(1,) * (x.mean.ndim - 2)) if x.share is None else x.share
