"""Multiplicative Gaussian noise: variational dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from ..errors import ConfigError
from ..sampling import draw
from .base import FactorisedGaussian, as_parameter, exchanged, mean_parameter, padded_shape, product

Granularity = Literal["weight", "neuron", "layer"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)


class MultiplicativeGaussian(FactorisedGaussian):
    """A weight under multiplicative noise, N(theta, alpha theta^2) (Kingma et al., 2015; variance networks, eq. 5).

    w = theta (1 + sqrt(alpha) eps), eps ~ N(0, 1); equation 14 of variational nested dropout.

    loc: theta. log_alpha: of a shape that broadcasts to that of loc; see `from_tensor`.

    >>> q = MultiplicativeGaussian.from_tensor(torch.tensor([[3.0, -4.0]]), granularity="layer", log_alpha=0.0)
    >>> q.std.detach(), q.log_alpha.shape
    (tensor([[3., 4.]]), torch.Size([1, 1]))
    """

    scales: ClassVar[Mapping[str, float]] = {"log_alpha": 2.0}

    def __init__(self, loc: Tensor, log_alpha: Tensor) -> None:
        super().__init__()
        if padded_shape(log_alpha.shape, loc.shape) is None:
            raise ConfigError(
                f"log_alpha: expected a shape that broadcasts to {tuple(loc.shape)}, received {tuple(log_alpha.shape)}"
            )
        self.loc = as_parameter(loc)
        self.log_alpha = as_parameter(log_alpha)

    @classmethod
    def from_tensor(
        cls,
        w: Tensor,
        granularity: Granularity = "weight",
        log_alpha: float = -5.0,
        *,
        requires_grad: bool | None = None,
    ) -> Self:
        """Start at a pretrained tensor: its copy is theta.

        granularity: one alpha for each "weight" (shape of w), "neuron" (index of dimension 0: (out, 1, 1, ...)) or
        "layer" ((1, 1, ...)).
        requires_grad: of theta; None keeps that of w, so a frozen weight keeps a frozen mean. log_alpha is trained.
        """
        loc = mean_parameter(w, requires_grad)
        shape = alpha_shape(w.shape, granularity)
        if shape == w.shape:
            return cls(loc, torch.full_like(w, log_alpha))  # in the memory format of w
        return cls(loc, torch.full(shape, log_alpha, dtype=w.dtype, device=w.device))

    @property
    def like(self) -> Tensor:
        return self.loc

    @property
    def mean(self) -> Tensor:
        return self.masked(self.loc)

    @property
    def std(self) -> Tensor:
        """sqrt(alpha) |theta|; its gradient at theta = 0 is 0."""
        return torch.exp(0.5 * self.log_alpha) * self.mean.abs()

    @property
    def variance(self) -> Tensor:
        """alpha theta^2, not by way of |theta|: smooth everywhere."""
        return torch.exp(self.log_alpha) * self.mean.square()

    def log_scale(self) -> Tensor:
        """log sqrt(alpha)."""
        return 0.5 * self.log_alpha

    def scale_noise_(self, factor: float) -> Callable[[], None]:
        """Multiply sqrt(alpha)."""
        return exchanged({self.log_alpha: self.log_alpha.detach() + 2 * math.log(factor)})

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """theta (1 + sqrt(alpha) noise), differentiable in theta at 0 too."""
        return self.mean * (1 + torch.exp(0.5 * self.log_alpha) * (draw(self) if noise is None else noise))

    def samples(self, noise: Tensor) -> Tensor:
        """`sample` for the noise of several samples, (samples, ...), to the bit; without gradients."""
        return product(torch.exp(0.5 * self.log_alpha), noise).add_(1).mul_(self.mean)

    def snr(self) -> Tensor:
        """1 / sqrt(alpha), whatever theta: defined where theta = 0 too."""
        return self.masked(torch.exp(-0.5 * self.log_alpha).expand(self.shape))


def alpha_shape(shape: torch.Size, granularity: str) -> torch.Size:
    """The shape of log_alpha for a tensor of the given shape.

    >>> alpha_shape(torch.Size([8, 3, 5, 5]), "neuron")
    torch.Size([8, 1, 1, 1])
    """
    if granularity not in GRANULARITIES:
        raise ConfigError(f"granularity: expected one of {', '.join(GRANULARITIES)}, received {granularity!r}")
    kept = {"weight": len(shape), "neuron": 1, "layer": 0}[granularity]
    return torch.Size([*shape[:kept], *[1] * len(shape[kept:])])


MultiplicativeGaussian.elements = MultiplicativeGaussian
