"""Operations that ONNX does not have, in terms of those that it has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def ndtri(p: Tensor) -> Tensor:
    """The inverse of the normal distribution function, which ONNX has no operation for (Wichura 1988, AS 241).

    >>> p = torch.tensor([1e-200, 1e-9, 0.02, 0.4, 0.5, 0.999], dtype=torch.float64)
    >>> torch.allclose(ndtri(p), torch.special.ndtri(p), rtol=1e-14)
    True
    """
    q = p - 0.5
    r = 0.180625 - q * q
    middle = q * _ratio(r, _MIDDLE)
    tail = (-torch.minimum(p, 1 - p).log()).sqrt()
    outer = torch.where(tail <= 5, _ratio(tail - 1.6, _TAIL), _ratio(tail - 5, _FAR))
    return torch.where(q.abs() <= 0.425, middle, torch.where(q < 0, -outer, outer))


def digamma(x: Tensor) -> Tensor:
    """psi, the logarithmic derivative of the gamma function: shifted upwards by 6, then its asymptotic series.

    >>> x = torch.tensor([-2.5, 1e-3, 0.5, 1.0, 3.7, 1e6], dtype=torch.float64)
    >>> torch.allclose(digamma(x), torch.digamma(x), rtol=1e-9)
    True
    """
    y = torch.where(x > 0, x, 1 - x)  # psi(x) = psi(1 - x) - pi / tan(pi x)
    z = y + 6
    square = 1 / (z * z)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    value = z.log() - 0.5 / z - series
    for shift in range(6):
        value = value - 1 / (y + shift)
    turned = value - math.pi / (math.pi * torch.where(x > 0, torch.full_like(x, 0.5), x)).tan()
    return torch.where(x > 0, value, turned)


def copysign(x: Tensor, sign: Tensor) -> Tensor:
    """x with the sign of another tensor; a negative zero counts as zero.

    >>> copysign(torch.tensor([1.0, -2.0]), torch.tensor([-3.0, 0.0]))
    tensor([-1.,  2.])
    """
    return torch.where(sign < 0, -x.abs(), x.abs())


def cholesky(a: Tensor) -> Tensor:
    """The lower triangular L with L L^T = a, of positive definite matrices (batch, n, n), column by column.

    >>> m = torch.randn(2, 5, 5, dtype=torch.float64)
    >>> a = m @ m.mT + torch.eye(5)
    >>> torch.allclose(cholesky(a), torch.linalg.cholesky(a))
    True
    """
    columns, rows = [], torch.arange(a.shape[-1])
    for j in range(a.shape[-1]):
        pivot = a[:, j : j + 1, j : j + 1].clamp_min(1e-30).sqrt()
        column = a[:, :, j : j + 1] / pivot * (rows >= j).to(a).unsqueeze(1)
        a = a - column * column.mT
        columns.append(column)
    return torch.cat(columns, -1)


def _ratio(x: Tensor, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
    top, bottom = (torch.zeros_like(x), torch.zeros_like(x))
    for a, b in zip(*map(reversed, coefficients), strict=True):
        top, bottom = top * x + a, bottom * x + b
    return top / bottom


_MIDDLE = (
    (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
     45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
    (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
     21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
)  # fmt: skip
_TAIL = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
     1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
     0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
     0.0265321895265761230930, 0.00124266094738807843860, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip
IN_TERMS_OF_OTHERS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.special_ndtri.default: ndtri,
    torch.ops.aten.digamma.default: digamma,
    torch.ops.aten.copysign.Tensor: copysign,
}
"""By the operation of torch, as `ExportedProgram.run_decompositions` takes them."""
