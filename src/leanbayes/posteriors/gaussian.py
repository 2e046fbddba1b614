"""The mean-field Gaussian, and a Gaussian whose mean is 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..errors import ConfigError
from ..sampling import draw
from .base import FactorisedGaussian, as_parameter, exchanged, mean_parameter, product
from .scale import log_std_from_rho, rho_like, scaled_rho, std_from_rho


class Gaussian(FactorisedGaussian):
    """The mean-field Gaussian N(loc, softplus(rho)^2) (Blundell et al., 2015, section 3.2).

    loc, rho: parameters of one shape.

    >>> q = Gaussian.from_tensor(torch.ones(2, 3), std=0.1)
    >>> q.sample().shape, round(q.snr()[0, 0].item(), 3)
    (torch.Size([2, 3]), 10.0)
    """

    scales: ClassVar[Mapping[str, float]] = {"rho": 1.0}

    def __init__(self, loc: Tensor, rho: Tensor) -> None:
        super().__init__()
        if loc.shape != rho.shape:
            raise ConfigError(f"rho: expected the shape of loc, {tuple(loc.shape)}, received {tuple(rho.shape)}")
        self.loc = as_parameter(loc)
        self.rho = as_parameter(rho)

    @classmethod
    def from_tensor(cls, w: Tensor, std: float | Tensor = 0.01, *, requires_grad: bool | None = None) -> Self:
        """Start at a pretrained tensor: its copy is the mean, std the spread about it.

        std: absolute; a number, or a tensor that broadcasts to the shape of w.
        requires_grad: of the mean; None keeps that of w, so a frozen weight keeps a frozen mean. rho is always trained.
        """
        return cls(mean_parameter(w, requires_grad), rho_like(w, std))

    @property
    def like(self) -> Tensor:
        return self.loc

    @property
    def mean(self) -> Tensor:
        return self.masked(self.loc)

    @property
    def std(self) -> Tensor:
        return self.masked(std_from_rho(self.rho))

    def samples(self, noise: Tensor) -> Tensor:
        """`sample` for the noise of several samples, (samples, ...), to the bit; without gradients."""
        return product(self.std, noise).add_(self.mean)

    def log_scale(self) -> Tensor:
        """log std."""
        return log_std_from_rho(self.rho)

    def scale_noise_(self, factor: float) -> Callable[[], None]:
        """Multiply sigma."""
        return exchanged({self.rho: scaled_rho(self.rho, factor)})


class ZeroMeanGaussian(FactorisedGaussian):
    """A variance-only weight, N(0, softplus(rho)^2) (variance networks, equation 12).

    Only the variance is learned; `has_mean` is False, since a network at the means would be zero.

    >>> q = ZeroMeanGaussian.from_tensor(torch.tensor([0.5, -2.0]))
    >>> q.mean, q.std.detach()
    (tensor([0., 0.]), tensor([0.5000, 2.0000]))
    """

    has_mean = False
    scales: ClassVar[Mapping[str, float]] = {"rho": 1.0}

    def __init__(self, rho: Tensor) -> None:
        super().__init__()
        self.rho = as_parameter(rho)

    @classmethod
    def from_tensor(cls, w: Tensor, std: float | Tensor | None = None) -> Self:
        """Start at a pretrained tensor: its shape, device and dtype, and by default its magnitudes.

        std: as for `Gaussian`; None takes |w|, which keeps E[w^2] as it was. Another posterior's std makes the
        zero-mean swap of equation 11.
        """
        if std is None:
            # An exact zero would be a dead weight: softplus reaches 0 only at rho = -inf, where its gradient vanishes.
            std = w.detach().abs().to(torch.promote_types(w.dtype, torch.float32)).clamp_min(1e-8)
        return cls(rho_like(w, std))

    @property
    def like(self) -> Tensor:
        return self.rho

    @property
    def mean(self) -> Tensor:
        """Zeros, as a constant."""
        return torch.zeros_like(self.rho, requires_grad=False)

    @property
    def std(self) -> Tensor:
        return self.masked(std_from_rho(self.rho))

    def log_scale(self) -> Tensor:
        """log std."""
        return log_std_from_rho(self.rho)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """std * noise."""
        return self.std * (draw(self) if noise is None else noise)

    def samples(self, noise: Tensor) -> Tensor:
        """`sample` for the noise of several samples, (samples, ...), to the bit; without gradients."""
        return product(self.std, noise)


Gaussian.elements = Gaussian


ZeroMeanGaussian.elements = ZeroMeanGaussian
