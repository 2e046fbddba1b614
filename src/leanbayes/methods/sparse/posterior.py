"""A Gaussian for the weights at a few places of a tensor, exactly zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...errors import ConfigError
from ...posteriors import Gaussian
from ...posteriors.base import FactorisedGaussian, above_zero, as_parameter, exchanged
from ...posteriors.scale import log_std_from_rho, rho_like, scaled_rho, std_from_rho
from ...posteriors.sparse import Sparse, largest
from ...sampling import draw


class SparseGaussian(Sparse, FactorisedGaussian):
    """N(loc, softplus(rho)^2) at the active places of a tensor, 0 at all others (sparse subspace VI, equation 2).

    loc, rho: (n,), one pair for each active weight. `mean`, `std` and draws of the tensor's size are computed when
    they are read.

    >>> q = SparseGaussian.from_tensor(torch.tensor([[0.1, -3.0], [2.0, 0.0]]), count=2, std=0.5)
    >>> q.mean.detach(), q.loc.numel()
    (tensor([[ 0., -3.],
            [ 2.,  0.]]), 2)
    """

    scales: ClassVar[Mapping[str, float]] = {"rho": 1.0}
    elements = Gaussian

    def __init__(self, loc: Tensor, rho: Tensor, index: Tensor, shape: torch.Size) -> None:
        super().__init__(loc, index, shape)
        if rho.shape != loc.shape:
            raise ConfigError(f"rho: expected the shape of loc, {tuple(loc.shape)}, received {tuple(rho.shape)}")
        self.rho = as_parameter(rho)

    @classmethod
    def from_tensor(
        cls, w: Tensor, count: int, std: float | Tensor = 0.01, *, requires_grad: bool | None = None
    ) -> Self:
        """Start from the ``count`` largest magnitudes of a tensor, with std about them.

        std: a number, or (count,). requires_grad: of the means; None keeps that of w.
        """
        loc, index = largest(w, count, requires_grad)
        return cls(loc, rho_like(loc, std), index, w.shape)

    def active_std(self) -> Tensor:
        """The stds of the active weights, (n,)."""
        std, kept = std_from_rho(self.rho), self._kept()
        return std if kept is None else torch.where(kept, std, 0.0)

    def log_scale(self) -> Tensor:
        """log std of the active weights, (n,)."""
        return log_std_from_rho(self.rho)

    def scale_noise_(self, factor: float) -> Callable[[], None]:
        """Multiply sigma."""
        return exchanged({self.rho: scaled_rho(self.rho, factor)})

    def active(self) -> Gaussian:
        """The distribution of the active weights alone, (n,), on the same parameters."""
        q = Gaussian(self.loc, self.rho)
        q.keep = self._kept()
        return q

    @property
    def std(self) -> Tensor:
        return self.masked(self.spread(std_from_rho(self.rho)))

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Standard normals, one a slot."""
        device = self.device if generator is None else generator.device
        return torch.randn(self.loc.shape, generator=generator, device=device, dtype=self.dtype)

    def noise_kind(self) -> tuple[Any, ...] | None:
        return type(self), self.loc.shape, self.dtype, self.device

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """loc + std * noise in their places."""
        return self.masked(self.spread(self.active_sample(noise)))

    def samples(self, noise: Tensor) -> Tensor:
        """`sample` for the noise of several samples, (samples, slots), to the bit; without gradients."""
        whole = noise.new_zeros(len(noise), self.shape.numel())
        whole.index_copy_(1, self.index.long(), self.active().samples(noise))
        return self.masked(whole.view(-1, *self.shape))

    def deviation(self, noise: Tensor | None = None) -> Tensor:
        """std * noise in their places."""
        return self.masked(self.spread(std_from_rho(self.rho) * (draw(self) if noise is None else noise)))

    def active_sample(self, noise: Tensor | None = None) -> Tensor:
        """loc + std * noise, (n,)."""
        return self.active().sample(draw(self) if noise is None else noise)

    def log_prob(self, w: Tensor) -> Tensor:
        """log q(w) at the active places; 0 elsewhere, where w is not a random variable."""
        at = self.index.long()
        return self.masked(self.spread(self.active().log_prob(w.flatten()[at])))

    def entropy(self) -> Tensor:
        """log std + log(2 pi e) / 2 at the active places, 0 elsewhere."""
        return self.masked(self.spread(self.active().entropy()))

    def snr(self) -> Tensor:
        """|loc| / std at the active places, 0 elsewhere."""
        return self.masked(self.spread(self.loc.abs() / above_zero(std_from_rho(self.rho))))
