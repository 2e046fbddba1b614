"""The truncated log-normal posterior of structured Bayesian pruning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from ... import checks
from ...errors import ConfigError
from ...kl import register_kl
from ...posteriors.base import Posterior, as_parameter
from ...priors import LogUniform
from ...sampling import draw

LOW = -20.0
_FAR = 30.0  # standard deviations beyond an end, where the distribution is a spike at that end
_LOG_STD = (-20.0, 5.0)


class TruncatedLogNormal(Posterior):
    """theta = e^z with z ~ N(loc, e^(2 log_std)) truncated to [low, 0] (Neklyudov et al., 2017).

    The scale of a channel or feature, between e^low and 1. The log-uniform prior on the same interval makes z uniform;
    for the KL see `kl_to_log_uniform`.

    loc, log_std: of one shape. Everything is computed in double precision, which the tails of a truncated normal need.

    >>> q = TruncatedLogNormal.start((2,), log_std=-5.0)
    >>> q.mean.detach(), q.sample(torch.tensor([0.5, 1.0])).detach()
    (tensor([0.9946, 0.9946]), tensor([0.9955, 1.0000]))
    """

    scales: ClassVar[Mapping[str, float]] = {"loc": 1.0, "log_std": 1.0}

    def __init__(self, loc: Tensor, log_std: Tensor, low: float = LOW) -> None:
        super().__init__()
        if loc.shape != log_std.shape:
            raise ConfigError(
                f"log_std: expected the shape of loc, {tuple(loc.shape)}, received {tuple(log_std.shape)}"
            )
        if not -math.inf < low < 0:
            raise ConfigError(f"low: expected the logarithm of a least scale, below 0, received {checks.short(low)}")
        self.loc, self.log_std, self.low = as_parameter(loc), as_parameter(log_std), float(low)

    @classmethod
    def start(
        cls,
        shape: tuple[int, ...],
        log_std: float = -5.0,
        low: float = LOW,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """The posterior with loc = 0, next to the scale 1."""
        loc = torch.zeros(shape, dtype=dtype, device=device)
        return cls(loc, torch.full_like(loc, log_std), low)

    @property
    def like(self) -> Tensor:
        return self.loc

    @property
    def mean(self) -> Tensor:
        """exp(loc + std^2 / 2) P(low - std^2 < z < -std^2) / P(low < z < 0)."""
        return self.masked(self._log_moment(1).exp().to(self.dtype))

    @property
    def std(self) -> Tensor:
        return self.masked((self._log_moment(1).exp() / self._snr()).to(self.dtype))

    def log_scale(self) -> Tensor:
        """log of the spread of log theta."""
        return self.log_std

    def snr(self) -> Tensor:
        """E theta / std theta; channels below 1 can be removed (Neklyudov et al., 2017)."""
        return self.masked(self._snr().to(self.dtype))

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Uniform on [0, 1), of `shape`."""
        device = self.device if generator is None else generator.device
        return torch.rand(self.shape, generator=generator, device=device, dtype=self.dtype)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """exp(loc + std Phi^-1(Phi(alpha) + u (Phi(beta) - Phi(alpha)))), the inverse CDF of the truncated normal at u.

        noise: u of `shape`, or with more dimensions before it for several draws.
        """
        loc, std, alpha, beta = self._standard()
        u = (draw(self) if noise is None else noise).double().clamp(2.0**-25, 1 - 2.0**-25)
        upper = alpha > 0  # in the upper tail, use symmetry
        lo, hi = torch.where(upper, -beta, alpha), torch.where(upper, -alpha, beta)
        below = torch.special.ndtr(lo)
        p = below + torch.where(upper, 1 - u, u) * (torch.special.ndtr(hi) - below)
        z = torch.special.ndtri(p.clamp(1e-300, 1 - 1e-16))
        value = (loc + std * torch.where(upper, -z, z)).clamp(self.low, 0.0)  # against rounding
        return self.masked(value.exp().to(self.dtype))

    def log_prob(self, w: Tensor) -> Tensor:
        """log N(log w; loc, std) - log P(low < z < 0) - log w; -infinity outside of [e^low, 1]."""
        loc, std, alpha, beta = self._standard()
        z = w.double().log()
        inside = -0.5 * ((z - loc) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        value = inside - log_interval(alpha, beta) - z
        outside = (z < self.low - 1e-12) | (z > 1e-12)
        return self.masked(torch.where(outside, -math.inf, value).to(self.dtype))

    def _standard(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """loc, std, and both ends in standard deviations from loc."""
        std = self.log_std.double().clamp(*_LOG_STD).exp()
        loc = self.loc.double()
        loc = torch.minimum(torch.maximum(loc, self.low - _FAR * std), _FAR * std)
        return loc, std, (self.low - loc) / std, -loc / std

    def _log_moment(self, order: int) -> Tensor:
        """log E theta^k = k loc + k^2 std^2 / 2 + log P(alpha - k std, beta - k std) - log P(alpha, beta)."""
        loc, std, alpha, beta = self._standard()
        shift = order * std
        tilted = log_interval(alpha - shift, beta - shift) - log_interval(alpha, beta)
        return order * loc + 0.5 * shift.square() + tilted

    def _snr(self) -> Tensor:
        """1 / sqrt(E theta^2 / (E theta)^2 - 1)."""
        return torch.expm1(self._log_moment(2) - 2 * self._log_moment(1)).clamp_min(1e-15).rsqrt()


def kl_to_log_uniform(q: TruncatedLogNormal) -> Tensor:
    """KL(q || log-uniform on [e^low, 1]) = log(-low) - H(z), elementwise (Neklyudov et al., 2017).

    H(z) = log(sqrt(2 pi e) std P) + (alpha phi(alpha) - beta phi(beta)) / (2 P), P = Phi(beta) - Phi(alpha).

    >>> kl_to_log_uniform(TruncatedLogNormal.start((1,), log_std=5.0)).item() < 1e-3  # nearly uniform
    True
    """
    _, std, alpha, beta = q._standard()
    log_p = log_interval(alpha, beta)
    entropy = 0.5 * math.log(2 * math.pi * math.e) + std.log() + log_p
    entropy = entropy + 0.5 * (_slope(alpha, log_p) - _slope(beta, log_p))
    return q.masked((math.log(-q.low) - entropy).to(q.dtype))


def log_interval(lo: Tensor, hi: Tensor) -> Tensor:
    """log(Phi(hi) - Phi(lo)) for lo < hi, in either tail.

    >>> log_interval(torch.tensor([30.0]).double(), torch.tensor([40.0]).double())
    tensor([-454.3212], dtype=torch.float64)
    """
    upper = lo > 0
    lo, hi = torch.where(upper, -hi, lo), torch.where(upper, -lo, hi)
    top = torch.special.log_ndtr(hi)
    return top + torch.log(-torch.expm1(torch.special.log_ndtr(lo) - top))


def _slope(x: Tensor, log_p: Tensor) -> Tensor:
    """x phi(x) / P, 0 far out instead of infinity * 0."""
    x = x.clamp(-1e3, 1e3)
    return x * torch.exp(-0.5 * x.square() - 0.5 * math.log(2 * math.pi) - log_p)


@register_kl(TruncatedLogNormal, LogUniform, kind="up to a constant")
def _cut_to_the_interval(q: TruncatedLogNormal, p: LogUniform, _: int) -> Tensor:
    """For the prior truncated to q's interval; for the improper one it is a constant away."""
    return kl_to_log_uniform(q)
