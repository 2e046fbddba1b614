"""Rules of sums, products and means. Two random tensors are taken for independent, a residual sum's among them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .elementwise import integrated
from .law import Moments
from .layout import share_of
from .rules import NoRule, rule


def scaled(x: Moments, factor: Any, shift: Any = None) -> Moments:
    """factor x + shift, both certain, by number or by channel."""
    mean = x.mean * factor if shift is None else torch.addcmul(shift, x.mean, factor)
    same = mean.shape == x.mean.shape
    varies = isinstance(factor, Tensor) and mean.ndim > 2 and any(n > 1 for n in factor.shape[2 - mean.ndim :])
    share = x.share if same and not varies else None
    return Moments(mean, x.variance * factor**2, share)


@rule("add", "radd")
def add(x: Any, other: Any, alpha: float = 1) -> Moments:
    """x + alpha * other."""
    if isinstance(x, Moments) and isinstance(other, Moments):
        if x is other:
            return scaled(x, 1 + alpha)
        mean = torch.add(x.mean, other.mean, alpha=alpha)
        variance = torch.add(x.variance, other.variance, alpha=alpha * alpha)
        return Moments(mean, variance, _mixed(x, other, alpha * alpha) if mean.shape == x.mean.shape else None)
    if isinstance(x, Moments):
        mean, random = torch.add(x.mean, other, alpha=alpha), x
    else:
        mean, random = torch.add(torch.as_tensor(x), other.mean, alpha=alpha), scaled(other, alpha)
    same = mean.shape == random.variance.shape
    return Moments(mean, random.variance.expand_as(mean), random.share if same else None)


def _mixed(x: Moments, other: Moments, weight: float) -> Tensor | None:
    """The correlations of positions in a sum."""
    if (x.share is None and other.share is None) or x.mean.shape != other.mean.shape or x.mean.ndim < 3:
        return None
    dims = tuple(range(2, x.mean.ndim))
    first, second = x.variance.mean(dims, keepdim=True), weight * other.variance.mean(dims, keepdim=True)
    total = (first + second).clamp_min(torch.finfo(first.dtype).tiny)
    return (share_of(x) * first + share_of(other) * second) / total


@rule("sub", "subtract")
def _sub(x: Any, other: Any, alpha: float = 1) -> Moments:
    return add(x, other, alpha=-alpha)


@rule("rsub")
def _rsub(x: Any, other: Any, alpha: float = 1) -> Moments:
    return add(other, x, alpha=-alpha)


@rule("neg", "negative")
def _neg(x: Moments) -> Moments:
    return scaled(x, -1)


@rule("mul", "multiply", "rmul")
def mul(x: Any, other: Any) -> Moments:
    """x * other."""
    if not (isinstance(x, Moments) and isinstance(other, Moments)):
        return scaled(x, other) if isinstance(x, Moments) else scaled(other, x)
    if x is other:
        return integrated(x, torch.square)
    return Moments(x.mean * other.mean, x.square * other.variance + x.variance * other.mean.square())


@rule("div", "true_divide", "truediv", "divide")
def _div(x: Any, other: Any, rounding_mode: str | None = None) -> Moments:
    if isinstance(other, Moments) or rounding_mode is not None:
        raise NoRule("it divides by a random number, or rounds")
    return scaled(x, 1 / other)


@rule("matmul", "mm", "bmm", "rmatmul")
def _matmul(x: Any, other: Any) -> Moments:
    """Of a random and a certain matrix, or of two independent ones."""
    if not isinstance(x, Moments):
        return Moments(x @ other.mean, x.square() @ other.variance)
    if not isinstance(other, Moments):
        return Moments(x.mean @ other, x.variance @ other.square())
    if x is other:
        raise NoRule("both of its arguments are the same")
    return Moments(x.mean @ other.mean, x.square @ other.variance + x.variance @ other.mean.square())


@rule("sum")
def _sum(x: Moments, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Moments:
    count = _count(x, dim)
    return scaled(_mean(x, dim, keepdim, dtype), count)


@rule("mean")
def _mean(x: Moments, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Moments:
    """The average; positions of a channel that vary together do not average out."""
    mean, variance = (part.mean(dim, keepdim, dtype=dtype) for part in (x.mean, x.variance))
    count, dims = _count(x, dim), _dims(x, dim)
    if x.share is None or not all(d >= 2 for d in dims):
        return Moments(mean, variance / count)
    share = x.share[0] if keepdim else x.share[0].squeeze(dims)
    return Moments(mean, variance * (share + (1 - share) / count))


def _dims(x: Moments, dim: Any) -> tuple[int, ...]:
    ndim = x.mean.ndim
    return tuple(d % ndim for d in (range(ndim) if dim is None else (dim,) if isinstance(dim, int) else dim))


def _count(x: Moments, dim: Any) -> int:
    return math.prod(x.mean.shape[d] for d in _dims(x, dim))
