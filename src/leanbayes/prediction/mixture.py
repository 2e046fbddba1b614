"""A mixture of Gaussians with as many components as samples: its density, CDF, quantiles and CRPS, in closed form.

Components lie along dimension 0: means and variances (S, N, ...), log weights (S, N). A component of weight zero (a
datum that settled took fewer samples) may hold anything finite. A variance of zero is a point mass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Mixture = tuple[Tensor, Tensor, Tensor]


def log_density(mixture: Mixture, targets: Tensor) -> Tensor:
    """log sum_s w_s prod_d N(y_d; m_sd, v_sd): one number a datum, over all its outputs together. Shape (N,).

    >>> one = torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2)
    >>> log_density(one, torch.tensor([0.0, 1.0]))
    tensor([-0.9189, -1.4189])
    """
    means, variances, log_weights = mixture
    density = -0.5 * ((targets - means).square() / variances + torch.log(2 * torch.pi * variances))
    return torch.logsumexp(log_weights + density.reshape(*log_weights.shape, -1).sum(2), dim=0)


def cdf(mixture: Mixture, targets: Tensor) -> Tensor:
    """P(Y <= y) = sum_s w_s Phi((y - m_s) / std_s) of every output by itself (N, ...).

    >>> cdf((torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2)), torch.tensor([0.0, 1.0]))
    tensor([0.5000, 0.8413])
    """
    means, std, weights = _wide(mixture)
    below = (weights * torch.special.ndtr((targets.to(means) - means) / std)).sum(0)
    return below.clamp(0, 1).to(targets.dtype)


def quantile(mixture: Mixture, q: float) -> Tensor:
    """The y at which the CDF is q (N, ...): Newton's method, kept inside a shrinking bracket.

    The quantile of a mixture lies between the least and the greatest of its components' own, which is the bracket to
    start from. A step that would leave it, or that is not half as long as the one before, halves it instead. Every
    element stops by itself, so that the answer does not depend on its neighbours.

    >>> round(quantile((torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1)), 0.975).item(), 4)
    1.96
    """
    means, std, weights = _wide(mixture)
    ends = means + std * torch.special.ndtri(means.new_tensor(q))
    used = weights > 0
    low, high = torch.where(used, ends, torch.inf).amin(0), torch.where(used, ends, -torch.inf).amax(0)
    close = 4 * torch.finfo(mixture[0].dtype).eps * (low.abs() + high.abs() + (weights * std).sum(0))
    x, step, going = (low + high) / 2, high - low, torch.ones_like(low, dtype=torch.bool)
    for _ in range(200):
        z = (x - means) / std
        excess = (weights * torch.special.ndtr(z)).sum(0) - q
        slope = (weights * torch.exp(-0.5 * z.square()) / std).sum(0) / math.sqrt(2 * math.pi)
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        newton = x - excess / slope
        good = (newton >= low) & (newton <= high) & ((newton - x).abs() <= step.abs() / 2)
        following = torch.where(good, newton, (low + high) / 2)
        following = torch.where(going, following, x)
        step, x = following - x, following
        going = going & (step.abs() > close)
        if not bool(going.any()):
            break
    return x.to(mixture[0].dtype)


def crps(mixture: Mixture, targets: Tensor) -> Tensor:
    """The continuous ranked probability score, int (F(x) - [x >= y])^2 dx = E|Y - y| - E|Y - Y'| / 2 (N, ...).

    sum_s w_s A(y - m_s, v_s) - 1/2 sum_st w_s w_t A(m_s - m_t, v_s + v_t) with A(m, v) = 2 std phi(m / std) +
    m (2 Phi(m / std) - 1), the mean of |N(m, v)| (Grimit et al. 2006, eq. 5). In the units of the target; for a point
    forecast it is the absolute error. The S^2 pairs are summed S at a time, so memory stays that of the samples.

    >>> round(crps((torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1)), torch.zeros(1)).item(), 4)
    0.2337
    """
    means, std, weights = _wide(mixture)
    score = (weights * _mean_magnitude(targets.to(means) - means, std)).sum(0)
    for s in range(len(means)):
        spread = _mean_magnitude(means[s:] - means[s], torch.hypot(std[s:], std[s]))
        spread[0] /= 2  # every other pair is met once instead of twice
        score -= weights[s] * (weights[s:] * spread).sum(0)
    return score.clamp_min(0).to(targets.dtype)


def _mean_magnitude(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, std^2)."""
    z = mean / std
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square()) + mean * torch.erf(z / math.sqrt(2))


def _wide(mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """Means, standard deviations and weights that broadcast, in double (mps has none)."""
    means, variances, log_weights = mixture
    if means.device.type != "mps":
        means, variances, log_weights = means.double(), variances.double(), log_weights.double()
    std = variances.sqrt().clamp_min(torch.finfo(means.dtype).tiny)  # a point mass: m / tiny is infinite or 0
    return means, std, log_weights.exp().reshape(*log_weights.shape, *(1,) * (means.ndim - 2))
