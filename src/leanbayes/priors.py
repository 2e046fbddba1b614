"""p(w): what is believed about a weight before any data.

No torch at module level: priors are part of the configs, and configs must be cheap to import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .config import check_between, check_finite, check_positive, configurable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EmpiricalNormal", "LogUniform", "Normal", "Prior", "ScaleMixture", "StudentT"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Prior:
    """Base of all priors: an elementwise log density.

    proper: whether the density integrates to one; if not, `log_prob` and every KL are defined up to a constant.
    """

    proper: ClassVar[bool] = True

    def log_prob(self, w: Tensor) -> Tensor:
        """log p(w), elementwise, of the shape of w."""
        raise NotImplementedError


@configurable
@dataclass(frozen=True)
class Normal(Prior):
    """The Gaussian, N(mean, std^2).

    Args:
        mean: where it is centred.
        std: how wide it is.

    >>> import torch
    >>> Normal(std=0.5).log_prob(torch.tensor([0.0, 1.0]))
    tensor([-0.2258, -2.2258])
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, "mean")
        check_positive(self, "std")

    def log_prob(self, w: Tensor) -> Tensor:
        """-(w - mean)^2 / (2 std^2) - log std - log(2 pi) / 2."""
        z = (w - self.mean) / self.std
        return -0.5 * z * z - (math.log(self.std) + _HALF_LOG_TWO_PI)


@configurable
@dataclass(frozen=True)
class EmpiricalNormal(Prior):
    """A Gaussian about the weights themselves, N(m, (scale * rms)^2), m the posterior's mean and rms its size.

    Centre and width are taken from the weights as they are trained (empirical Bayes; MOPED, Krishnan et al., 2020, is
    the same prior with the centre held at the pretrained weights). So the KL leaves the means alone and acts on the
    spread: a weight that the data say nothing about keeps a standard deviation of ``scale`` times the typical weight
    of its tensor, whatever the layer's size, and one that they determine gets less.

    Args:
        scale: the standard deviation, relative to the root mean square of the tensor (which counts as 0.01 at least).

    As a density of a weight alone it is flat, hence improper.

    >>> import torch
    >>> EmpiricalNormal().std(torch.tensor([3.0, -4.0]) / 5)
    tensor(0.0354)
    """

    proper: ClassVar[bool] = False
    FLOOR: ClassVar[float] = 0.01

    scale: float = 0.05

    def __post_init__(self) -> None:
        check_positive(self, "scale")

    def std(self, mean: Tensor) -> Tensor:
        """scale * max(rms, 0.01) of a tensor of means, a constant to gradients."""
        wide = mean.detach().double() if mean.dtype.itemsize < 4 else mean.detach()
        size = wide.square().mean().sqrt() if mean.numel() else wide.sum()
        return (self.scale * size.clamp_min(self.FLOOR)).to(mean.dtype)

    def stds(self, means: list[Tensor]) -> Tensor:
        """`std` of several tensors of one dtype and device, (tensors,), in a few operations."""
        import torch

        wide = [m.detach().double() if m.dtype.itemsize < 4 else m.detach() for m in means]
        counts = torch.tensor([max(m.numel(), 1) for m in means], dtype=wide[0].dtype, device=wide[0].device)
        sizes = torch.stack(torch._foreach_norm(wide)) / counts.sqrt()
        return (self.scale * sizes.clamp_min(self.FLOOR)).to(means[0].dtype)

    def log_prob(self, w: Tensor) -> Tensor:
        """0, up to a constant."""
        return 0.0 * w


@configurable
@dataclass(frozen=True)
class LogUniform(Prior):
    """The log-uniform prior, p(w) proportional to 1 / |w| (Kingma et al., 2015).

    It has no scale of its own, so against N(theta, alpha theta^2) only alpha counts. It is improper.

    >>> import torch
    >>> LogUniform().log_prob(torch.tensor([1.0, -2.0]))
    tensor([-0.0000, -0.6931])
    """

    proper: ClassVar[bool] = False

    def log_prob(self, w: Tensor) -> Tensor:
        """-log|w|, up to a constant."""
        return -w.abs().log()


@configurable
@dataclass(frozen=True)
class StudentT(Prior):
    """Student's t with heavy tails: a proper stand-in for the log-uniform prior, its limit as df -> 0.

    Variance networks, appendix B, takes df = 1e-16 and finds the same results as with the log-uniform prior.

    Args:
        df: degrees of freedom; the fewer, the heavier the tails.
        loc: where it is centred.
        scale: how wide it is.

    >>> import torch
    >>> StudentT(df=1.0).log_prob(torch.tensor(0.0))  # Cauchy: -log(pi)
    tensor(-1.1447)
    """

    df: float = 3.0
    loc: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "df", "scale")
        check_finite(self, "loc")

    def log_prob(self, w: Tensor) -> Tensor:
        """log G((df+1)/2) - log G(df/2) - log(df pi)/2 - log scale - (df+1)/2 log(1 + z^2/df), z = (w - loc)/scale."""
        from .posteriors.student_t import log1p_square

        z = (w - self.loc) / self.scale
        # z^2 / df may not fit where df is 1e-16, the logarithm does
        return self.log_peak - 0.5 * (self.df + 1) * log1p_square(z / math.sqrt(self.df))

    @property
    def log_peak(self) -> float:
        """log p(loc)."""
        gammas = math.lgamma(0.5 * (self.df + 1)) - math.lgamma(0.5 * self.df)
        return gammas - 0.5 * math.log(self.df * math.pi) - math.log(self.scale)


@configurable
@dataclass(frozen=True)
class ScaleMixture(Prior):
    """A wide and a narrow Gaussian about zero, pi N(0, std1^2) + (1 - pi) N(0, std2^2) (Blundell et al., 2015, eq. 7).

    Args:
        pi: the share of the wide Gaussian.
        std1: of the wide Gaussian.
        std2: of the narrow one.

    >>> import torch
    >>> ScaleMixture(pi=0.5, std1=1.0, std2=1.0).log_prob(torch.tensor(0.0))  # no mixture at all
    tensor(-0.9189)
    """

    pi: float = 0.5
    std1: float = 1.0
    std2: float = 0.0025

    def __post_init__(self) -> None:
        check_positive(self, "pi", "std1", "std2")
        check_between(self, "pi", 0, 1, open_high=True)

    def log_prob(self, w: Tensor) -> Tensor:
        """log(pi N(w; 0, std1^2) + (1 - pi) N(w; 0, std2^2)), summed in the log domain."""
        import torch

        wide = Normal(std=self.std1).log_prob(w) + math.log(self.pi)
        narrow = Normal(std=self.std2).log_prob(w) + math.log1p(-self.pi)
        return torch.logaddexp(wide, narrow)
