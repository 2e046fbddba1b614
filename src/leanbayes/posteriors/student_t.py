"""E log(1 + w^2 / df) of a Gaussian w, which is all that its KL to Student's t needs; `leanbayes.kl` uses it.

With w ~ N(a, b^2), x = a / (b sqrt 2) and u = sqrt(df / 2) / b it is a function of the point x + iu of the upper half
plane, E log((x + t)^2 + u^2) - 2 log u with t ~ N(0, 1/2). Near the origin, where a node of Gauss-Hermite could fall on
the logarithm's singularity (df = 1e-16 is the case of variance networks, appendix B), its Fourier form has none:

    E log((x + t)^2 + u^2) = -gamma - 2 log 2 + 2 int_0^inf exp(-s^2 / 4) (1 - cos(x s) exp(-u s)) / s ds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels.once import first_derivatives

Formula = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

_RADIUS = 5.0  # from here on Gauss-Hermite is good to exp(-25)
_LOW = 0.015  # up to here four terms of a Taylor series in u are good to 1e-9
_TERMS = 4
_END = 10.5  # of the Fourier integral: exp(-s^2 / 4) is 1e-12 there
_AT_ZERO = -float(np.euler_gamma) - 2 * math.log(2)


def _pairs(nodes: tuple[Any, Any]) -> list[tuple[float, float]]:
    return list(zip(nodes[0].tolist(), nodes[1].tolist(), strict=True))


def _fourier_nodes(count: int) -> list[tuple[float, float]]:
    """Nodes s of Gauss-Legendre on [0, _END], and their weights times 2 exp(-s^2 / 4)."""
    t, weight = np.polynomial.legendre.leggauss(count)
    s = 0.5 * _END * (t + 1)
    return _pairs((s, _END * weight * np.exp(-0.25 * s * s)))


_T, _WEIGHT = np.polynomial.hermite.hermgauss(24)
_HERMITE = _pairs((_T, _WEIGHT / math.sqrt(math.pi)))
_FOURIER = _fourier_nodes(44)


def log1p_square(r: Tensor) -> Tensor:
    """log(1 + r^2), elementwise, also where r^2 would overflow.

    >>> log1p_square(torch.tensor([0.0, 1.0, 1e30]))
    tensor([  0.0000,   0.6931, 138.1551])
    """
    big = r.abs() > 1
    small, large = torch.where(big, 0.0, r), torch.where(big, r, 1.0)
    return torch.where(big, 2 * large.abs().log() + large.reciprocal().square().log1p(), small.square().log1p())


def expected_log1p_square(x: Tensor, u: Tensor) -> Tensor:
    """E log(1 + ((x + t) / u)^2), t ~ N(0, 1/2), for x of any sign and u > 0; of their broadcast shape.

    Good to 1e-9 in double precision. In single precision it is good to a few units in the last place of its largest
    term, 2 |log u|.

    >>> x, u = torch.tensor([0.0, 3.0]), torch.tensor([1.0, 1e-8])
    >>> expected_log1p_square(x, u)
    tensor([ 0.3310, 38.9771])
    """
    return _Expected.apply(x, u)  # type: ignore[no-any-return, no-untyped-call]


class _Expected(torch.autograd.Function):
    """Saves x and u alone; autograd through the quadrature would save tensors for every node."""

    @staticmethod
    def forward(x: Tensor, u: Tensor) -> Tensor:
        return _by_place(x, u, _axis_value, _near_value, _far_value)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @first_derivatives("the KL to a Student-t prior has no others")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, u = ctx.saved_tensors
        in_x, in_u = _by_place(x, u, _axis_slopes, _near_slopes, _far_slopes)
        return (grad * in_x).sum_to_size(x.shape), (grad * in_u).sum_to_size(u.shape)


def _by_place(x: Tensor, u: Tensor, axis: Formula, near: Formula, far: Formula) -> tuple[Tensor, ...]:
    """One formula close to the real axis, one near the origin, one far from it.

    The first integrates over the nodes in the shape of x, which is a single number where a layer has one alpha.
    """
    rest = (u >= _LOW) | (x.abs() >= _RADIUS)
    if not bool(rest.any()):
        return axis(x, u)
    a, b = x.expand(rest.shape)[rest], u.expand(rest.shape)[rest]
    close = torch.hypot(a, b) < _RADIUS
    inside = near(torch.where(close, a, 0.0), torch.where(close, b, 1.0)) if bool(close.any()) else None
    outside = far(torch.where(close, 0.0, a), torch.where(close, 1.0, b)) if not bool(close.all()) else None
    found = inside or outside
    assert found is not None
    if inside and outside:
        found = tuple(torch.where(close, c, d) for c, d in zip(inside, outside, strict=True))
    if bool(rest.all()):
        return tuple(value.reshape(rest.shape) for value in found)
    rows = axis(x.clamp(-_RADIUS, _RADIUS), u.clamp(max=_LOW))
    return tuple(row.masked_scatter(rest, value) for row, value in zip(rows, found, strict=True))


def _axis_value(x: Tensor, u: Tensor) -> tuple[Tensor]:
    """A Taylor series in u: exp(-us) has the moments of s as its coefficients."""
    still = torch.full_like(x, _AT_ZERO)
    moments = [torch.zeros_like(x) for _ in range(_TERMS)]
    for s, weight in _FOURIER:
        still.add_(torch.sin(0.5 * s * x).square(), alpha=2 * weight / s)
        for k, moment in enumerate(moments):
            moment.add_(torch.cos(x * s), alpha=weight * s**k * (-1) ** k / math.factorial(k + 1))
    return (still + _horner(moments, u) * u - 2 * u.log(),)


def _axis_slopes(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    in_x = [torch.zeros_like(x) for _ in range(_TERMS + 1)]
    in_u = [torch.zeros_like(x) for _ in range(_TERMS)]
    for s, weight in _FOURIER:
        for k, moment in enumerate(in_x):
            moment.add_(torch.sin(x * s), alpha=weight * (-s) ** k / math.factorial(k))
        for k, moment in enumerate(in_u):
            moment.add_(torch.cos(x * s), alpha=weight * (-s) ** k / math.factorial(k))
    return _horner(in_x, u), _horner(in_u, u) - 2 / u


def _near_value(x: Tensor, u: Tensor) -> tuple[Tensor]:
    total = torch.full_like(u, _AT_ZERO)
    for s, weight in _FOURIER:
        # 1 - cos(xs) exp(-us), without cancellation where both x and u are small
        drop = torch.expm1(-s * u).mul_(torch.cos(x * s)).sub_(torch.sin(0.5 * s * x).square_(), alpha=2)
        total.add_(drop, alpha=-weight / s)
    return (total.sub_(u.log(), alpha=2),)


def _near_slopes(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    in_x, in_u = torch.zeros_like(u), torch.zeros_like(u)
    for s, weight in _FOURIER:
        decay = torch.exp(-s * u)
        in_x.addcmul_(decay, torch.sin(x * s), value=weight)
        in_u.addcmul_(decay, torch.cos(x * s), value=weight)
    return in_x, in_u.sub_(u.reciprocal(), alpha=2)


def _far_value(x: Tensor, u: Tensor) -> tuple[Tensor]:
    total = torch.zeros_like(u)
    for t, weight in _HERMITE:
        total.add_(log1p_square((x + t) / u), alpha=weight)
    return (total,)


def _far_slopes(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """2y / (y^2 + u^2) and -2 y^2 / (u (y^2 + u^2)) at the nodes, y = x + t."""
    in_x, in_u = torch.zeros_like(u), torch.zeros_like(u)
    for t, weight in _HERMITE:
        y = x + t
        size = torch.hypot(y, u)
        in_x.add_((y / size) / size, alpha=2 * weight)
        in_u.add_((y / size).square() / u, alpha=-2 * weight)
    return in_x, in_u


def _horner(coefficients: list[Tensor], u: Tensor) -> Tensor:
    """The sum of coefficients[k] u^k."""
    total = torch.zeros_like(u)
    for coefficient in reversed(coefficients):
        total = total * u + coefficient
    return total
