"""The KL of Gaussian noise against the log-uniform prior, as functions of log alpha; `leanbayes.kl` names them.

KL(N(theta, alpha theta^2) || 1/|w|) depends on alpha alone. The prior is improper, so that it is known up to a constant
only; all curves share one convention and can be compared: the exact one goes to 0 as alpha goes to infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# As alpha -> 0 the exact KL goes to LOW - log(alpha) / 2; LOW = (gamma + log 2) / 2 = -E log|eps|.
_LOW = 0.5 * (float(np.euler_gamma) + math.log(2))


def molchanov(log_alpha: Tensor) -> Tensor:
    """KL ~ k1 - k1 sigmoid(k2 + k3 log alpha) + log(1 + 1/alpha) / 2 (Molchanov et al., 2017, eq. 14).

    Tight everywhere: the published maximal error is 0.009, the computed one 0.0094 at log alpha = -3.5. Equation 10 of
    variance networks, called KL there, is its negative.
    """
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    return k1 * torch.sigmoid(-(k2 + k3 * log_alpha)) + _half_log1p_inverse(log_alpha)


def kingma(log_alpha: Tensor) -> Tensor:
    """KL ~ const - log(alpha) / 2 - c1 alpha - c2 alpha^2 - c3 alpha^3, alpha <= 1 (Kingma et al., 2015, section 4.3).

    The constant is that of the exact KL as alpha -> 0; with it the error is 0.041 at most. Above alpha = 1, where the
    cubic would run off to -infinity, it stays at its value there, without gradient: the paper's constraint.
    """
    c1, c2, c3 = 1.16145124, -1.50204118, 0.58629921
    log_alpha = log_alpha.clamp(max=0)
    alpha = log_alpha.exp()
    return _LOW - 0.5 * log_alpha - alpha * (c1 + alpha * (c2 + alpha * c3))


def cui(log_alpha: Tensor) -> Tensor:
    """KL ~ log(1 + 1/alpha) / 2 - a1 exp(-e^a4 (a2 + a3 log alpha)^2) (variational nested dropout, eq. 17 corrected).

    The printed equation is -KL and has the second exponential misplaced. Least at log alpha = 1.03 where the true KL
    keeps falling: a deliberate distortion that keeps alpha finite. On the fitted range, log alpha in [-5, 0.5], it errs
    by 0.099 at most once the mean difference (-0.67) is removed.
    """
    a1, a2, a3, a4 = 0.7294, -0.2041, 0.3492, 0.5387
    bump = torch.exp(-math.exp(a4) * (a2 + a3 * log_alpha).square())
    return _half_log1p_inverse(log_alpha) - a1 * bump


def exact(log_alpha: Tensor) -> Tensor:
    """KL(N(theta, alpha theta^2) || log-uniform) less its limit at alpha -> infinity, to rounding error.

    KL = E log|1 + sqrt(alpha) eps| - log(alpha) / 2 + (gamma + log 2) / 2, and with u = 1 / (2 alpha)

        KL = 2 int_0^sqrt(u) F(x) dx = int_0^1 (1 - exp(-u (1 - s^2))) / (1 - s^2) ds,
        dKL / dlog alpha = -sqrt(u) F(sqrt(u)),

    F Dawson's function (Hron et al., 2017): log|w|^2 is the log of a non-central chi-square, a Poisson(u) mixture of
    digammas, whose derivative in u is F(sqrt(u)) / sqrt(u). The integrand in s is positive and smooth, so that a few
    Gauss-Legendre nodes give it without cancellation; from u = 50 an asymptotic series takes over.

    >>> exact(torch.tensor([-20.0, 0.0, 20.0]))
    tensor([1.0635e+01, 4.2669e-01, 1.0306e-09])
    """
    return _Exact.apply(log_alpha)  # type: ignore[no-any-return, no-untyped-call]


def monte_carlo(snr: Tensor, noise: Tensor) -> Tensor:
    """KL ~ log|eps + 1 / sqrt(alpha)| + (gamma + log 2) / 2, eps ~ N(0, 1) (variance networks, equation 9).

    That is equation 9 as it should read, -log(alpha) / 2 + log|1 + sqrt(alpha) eps|, in a form that holds for any
    alpha, and in the convention of the other curves. snr: 1 / sqrt(alpha), of any sign. Unbiased; but the gradient has
    the tails of 1 / (eps + snr), a Cauchy distribution's: its variance is infinite, and it does not average out over
    weights as the value does.
    """
    tiny = torch.finfo(noise.dtype).tiny  # eps = -snr exactly would be log 0
    return (noise + snr).abs().clamp_min(tiny).log() + _LOW


class _Exact(torch.autograd.Function):
    """Saves log alpha alone; autograd through the quadrature would save a tensor for every node."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_alpha: Tensor) -> Tensor:
        return _exact_value(log_alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * _exact_slope(*ctx.saved_tensors)


def _half_nodes(count: int) -> list[tuple[float, float]]:
    """1 - s^2 and the weight of the Gauss-Legendre nodes s > 0: the integrand is even, and they crowd at its layer."""
    s, weight = np.polynomial.legendre.leggauss(2 * count)
    return [((1 - a) * (1 + a), b) for a, b in zip(s[count:].tolist(), weight[count:].tolist(), strict=True)]


_NODES = _half_nodes(24)
_SWITCH = -math.log(2 * 50.0)  # log alpha at u = 50: both sides are good to 1e-13 there
_SERIES = [math.prod(range(1, 2 * k, 2)) / 2.0 ** (k + 1) for k in range(1, 17)]  # (2k-1)!! / 2^(k+1)


def _exact_value(log_alpha: Tensor) -> Tensor:
    u, inverse_u, wide = _both_sides(log_alpha)
    near = torch.zeros_like(u)
    for c, weight in _NODES:
        near = torch.add(near, torch.expm1(-c * u), alpha=-weight / c)
    far = _LOW - 0.5 * wide - _horner(inverse_u, [a / k for k, a in enumerate(_SERIES, 1)])
    return torch.where(wide > _SWITCH, near, far).to(log_alpha.dtype)


def _exact_slope(log_alpha: Tensor) -> Tensor:
    """dKL / dlog alpha, in torch operations, so that a second derivative works too."""
    u, inverse_u, wide = _both_sides(log_alpha)
    near = torch.zeros_like(u)
    for c, weight in _NODES:
        near = torch.add(near, torch.exp(-c * u), alpha=-weight)
    far = -0.5 - _horner(inverse_u, _SERIES)
    return torch.where(wide > _SWITCH, u * near, far).to(log_alpha.dtype)


def _both_sides(log_alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u for the quadrature and 1/u for the series, each kept to its own side; log alpha in at least float32."""
    wide = log_alpha.to(torch.promote_types(log_alpha.dtype, torch.float32))
    return 0.5 * torch.exp(-wide.clamp(min=_SWITCH)), 2 * torch.exp(wide.clamp(max=_SWITCH)), wide


def _horner(x: Tensor, coefficients: list[float]) -> Tensor:
    """The sum over k >= 1 of coefficients[k - 1] x^k."""
    total = torch.zeros_like(x)
    for a in reversed(coefficients):
        total = x * (total + a)
    return total


def _half_log1p_inverse(log_alpha: Tensor) -> Tensor:
    """log(1 + 1/alpha) / 2 without overflow."""
    return 0.5 * F.softplus(-log_alpha, threshold=40.0)
