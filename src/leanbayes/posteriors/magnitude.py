"""How large a weight theta ~ N(mu, sigma^2) is, by three measures: what pruning and sparse training rank by.

All are elementwise and in double precision whatever comes in. r = |mu| / sigma, and d = E|theta| / sigma - r is the
folded normal's excess over r.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def magnitude_of_mean(mu: Tensor, sigma: Tensor) -> Tensor:
    """Criterion 1: |mu|.

    >>> magnitude_of_mean(torch.tensor([-2.0]), torch.tensor([1.0]))
    tensor([2.], dtype=torch.float64)
    """
    return mu.detach().double().abs()


def signal_to_noise(mu: Tensor, sigma: Tensor) -> Tensor:
    """Criterion 2: SNR(theta) = |mu| / sigma.

    >>> signal_to_noise(torch.tensor([-2.0]), torch.tensor([0.5]))
    tensor([4.], dtype=torch.float64)
    """
    return mu.detach().double().abs() / above_zero(sigma)


def expected_magnitude(mu: Tensor, sigma: Tensor) -> Tensor:
    """Criterion 3 (equation 6): E|theta| = sigma (r + d).

    >>> expected_magnitude(torch.tensor([0.0]), torch.tensor([1.0]))  # sqrt(2 / pi)
    tensor([0.7979], dtype=torch.float64)
    """
    r = signal_to_noise(mu, sigma)
    return mu.detach().double().abs() + sigma.detach().double() * excess(r)


def excess(r: Tensor) -> Tensor:
    """d(r) = sqrt(2 / pi) e^(-r^2 / 2) - 2 r Phi(-r), without cancelling against the exponential."""
    return torch.exp(-r * r / 2) * (math.sqrt(2 / math.pi) - r * torch.special.erfcx(r / math.sqrt(2)))


def above_zero(sigma: Tensor) -> Tensor:
    """A sigma that has underflowed is the smallest there is: r stays a number."""
    return sigma.detach().double().clamp_min(torch.finfo(torch.double).tiny)
