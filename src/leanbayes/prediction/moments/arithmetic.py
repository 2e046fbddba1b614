"""Rules of sums, products and means. Two random tensors are taken for independent, a residual sum's among them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from . import across
from .elementwise import integrated
from .law import Moments
from .rules import NoRule, rule
from .waiting import Affine, computed, scaled


@rule("add", "radd", early=(Affine,))
def add(x: Any, other: Any, alpha: float = 1) -> Moments | Affine:
    """x + alpha * other."""
    if isinstance(x, (Moments, Affine)) and isinstance(other, (Moments, Affine)):
        return _sum_of_two(x, other, alpha)
    x, other = (part.done() if isinstance(part, Affine) else part for part in (x, other))
    if isinstance(x, Moments):
        mean, random = torch.add(x.mean, other, alpha=alpha), x
    else:
        mean, random = torch.add(torch.as_tensor(x), other.mean, alpha=alpha), scaled(other, alpha)
    same = mean.shape == random.variance.shape
    return Moments(mean, random.variance.expand_as(mean), random.share if same else None)


def _sum_of_two(x: Moments | Affine, other: Moments | Affine, alpha: float) -> Moments | Affine:
    """Which waits: a rectifier behind it does the sum too."""
    if x is other:
        return scaled(computed(x), 1 + alpha)
    if alpha != 1:
        other = scaled(computed(other), alpha)
    if x.mean.shape != other.mean.shape or x.mean.dtype != other.mean.dtype:
        x, other = computed(x), computed(other)
        return Moments(x.mean + other.mean, x.variance + other.variance)
    if not isinstance(x, Affine):
        x, other = other, x
    if isinstance(x, Affine) and x.other is None:
        return replace(x, other=computed(other))
    return Affine(computed(x), other=computed(other))


@rule("sub", "subtract")
def _sub(x: Any, other: Any, alpha: float = 1) -> Moments | Affine:
    return add(x, other, alpha=-alpha)


@rule("rsub")
def _rsub(x: Any, other: Any, alpha: float = 1) -> Moments | Affine:
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
    node = None
    if len(dims) == x.mean.ndim - 2:
        node = across.behind(x.across, lambda: (variance * (1 - share) / count).flatten(1))
    return Moments(mean, variance * (share + (1 - share) / count), None, None, node)


def _dims(x: Moments, dim: Any) -> tuple[int, ...]:
    ndim = x.mean.ndim
    return tuple(d % ndim for d in (range(ndim) if dim is None else (dim,) if isinstance(dim, int) else dim))


def _count(x: Moments, dim: Any) -> int:
    return math.prod(x.mean.shape[d] for d in _dims(x, dim))
