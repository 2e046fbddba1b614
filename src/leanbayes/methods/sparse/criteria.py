"""The removal criteria of sparse subspace VI (section 3.3.1), as functions of theta ~ N(mu, sigma^2).

All are elementwise, computed in double precision, and finite for any ratio r = |mu| / sigma. A score has the order of
its criterion without its overflow. With s = lambda sigma, and d = E|theta| / sigma - r, the folded normal's excess over
r, all are functions of r and s, times a power of sigma.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ... import checks
from ...checks import number
from ...errors import ConfigError
from ...posteriors.magnitude import above_zero, excess, expected_magnitude, magnitude_of_mean, signal_to_noise
from .config import REMOVALS

Removal = Literal["mean", "snr", "abs", "snr-abs", "exp", "snr-exp"]

_SERIES_BELOW = 1e-3
_PLAIN_ABOVE = 12.0  # e^(-r^2 / 2) is below 1e-31 there: |theta| is theta


def signal_to_noise_of_magnitude(mu: Tensor, sigma: Tensor) -> Tensor:
    """Criterion 4 (equation 7): SNR(|theta|) = (r + d) / sqrt(1 - 2 r d - d^2).

    An increasing function of r alone, so that it ranks as criterion 2 does, and flat at r = 0: rank by r.

    >>> signal_to_noise_of_magnitude(torch.tensor([0.0, 30.0]), torch.tensor([1.0, 1.0]))
    tensor([ 1.3236, 30.0000], dtype=torch.float64)
    """
    r = signal_to_noise(mu, sigma)
    d = excess(r)
    return (r + d) / (1 - d * (2 * r + d)).sqrt()


def log_expected_exponential(mu: Tensor, sigma: Tensor, lam: float = 1.0) -> Tensor:
    """Criterion 5 (equation 8), its logarithm: log E exp(lambda |theta|) = r s + s^2 / 2 + c(s).

    c(s) = log(Phi(r + s) + e^(-2 r s) Phi(s - r)), which vanishes for a large r.

    >>> log_expected_exponential(torch.tensor([3.0]), torch.tensor([1e-3]))
    tensor([3.0000], dtype=torch.float64)
    """
    r, s = signal_to_noise(mu, sigma), _check(lam) * sigma.detach().double()
    return lam * mu.detach().double().abs() + s * s / 2 + _correction(r, s)


def signal_to_noise_of_exponential(mu: Tensor, sigma: Tensor, lam: float = 1.0) -> Tensor:
    """Criterion 6 (equation 8): SNR(exp(lambda |theta|)) = 1 / sqrt(expm1(K(2 s) - 2 K(s))), K as in criterion 5.

    >>> signal_to_noise_of_exponential(torch.tensor([30.0]), torch.tensor([1.0]))  # 1 / sqrt(e - 1)
    tensor([0.7629], dtype=torch.float64)
    """
    x = _log_second_moment(mu, sigma, lam)
    return torch.exp(-x / 2) / torch.sqrt(-torch.expm1(-x))  # a large x would overflow the other way round


def removal_score(name: Removal | str, mu: Tensor, sigma: Tensor, lam: float = 1.0) -> Tensor:
    """The score that ranks weights under a criterion; the lowest are removed.

    name: "mean", "snr", "abs", "snr-abs", "exp" or "snr-exp", criteria 1 to 6 in the paper's order. The last three use
    a number of the same order that does not round or overflow: r, log E, and -log E[f^2] / E[f]^2.

    >>> removal_score("snr-abs", torch.tensor([1e-6, 1e-7]), torch.tensor([1.0, 1.0])).argsort()
    tensor([1, 0])
    """
    return _find(name)(mu, sigma, lam)


def _find(name: str) -> Callable[[Tensor, Tensor, float], Tensor]:
    scores: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
        "mean": lambda mu, sigma, _: magnitude_of_mean(mu, sigma),
        "snr": lambda mu, sigma, _: signal_to_noise(mu, sigma),
        "abs": lambda mu, sigma, _: expected_magnitude(mu, sigma),
        "snr-abs": lambda mu, sigma, _: signal_to_noise(mu, sigma),
        "exp": log_expected_exponential,
        "snr-exp": lambda mu, sigma, lam: -_log_second_moment(mu, sigma, lam),
    }
    if name not in scores:
        raise ConfigError(f"removal: expected one of {', '.join(REMOVALS)}, received {checks.short(name)}")
    return scores[name]


def _log_second_moment(mu: Tensor, sigma: Tensor, lam: float) -> Tensor:
    """log E[f^2] / E[f]^2 of f = exp(lambda |theta|): s^2 + c(2 s) - 2 c(s), the terms linear in s cancelled by hand.

    For a small s, where c itself would cancel, its series: k2 s^2 + k3 s^3 + 7/12 k4 s^4 with the cumulants of |theta|.
    """
    r, s = signal_to_noise(mu, sigma), _check(lam) * above_zero(sigma)
    direct = s * s + _correction(r, 2 * s) - 2 * _correction(r, s)
    k2, k3, k4 = _cumulants(r)
    series = s * s * (k2 + s * (k3 + 7 / 12 * s * k4))
    return torch.where(s < _SERIES_BELOW, series, direct)


def _correction(r: Tensor, s: Tensor) -> Tensor:
    """c(s) = log(Phi(r + s) + e^(-2 r s) Phi(s - r))."""
    return torch.logaddexp(torch.special.log_ndtr(r + s), torch.special.log_ndtr(s - r) - 2 * r * s)


def _cumulants(r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Second to fourth of |theta| / sigma; those of the normal where folding no longer matters."""
    folded = r < _PLAIN_ABOVE
    x = torch.where(folded, r, 0.0)
    density, odd = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi), torch.special.erf(x / math.sqrt(2))
    m1 = x * odd + 2 * density
    m2 = 1 + x * x
    m3 = (x**3 + 3 * x) * odd + (2 * x * x + 4) * density
    m4 = x**4 + 6 * x * x + 3
    k2 = m2 - m1 * m1
    k3 = m3 - 3 * m1 * m2 + 2 * m1**3
    k4 = m4 - 4 * m1 * m3 - 3 * m2 * m2 + 12 * m1 * m1 * m2 - 6 * m1**4
    return torch.where(folded, k2, 1.0), torch.where(folded, k3, 0.0), torch.where(folded, k4, 0.0)


def _check(lam: float) -> float:
    return number("lam", lam, above=0)
