"""A latent code: what it draws for each datum, what that costs, and the prior that images are generated from."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..errors import ConversionError
from ..ordering import gumbel_noise
from ..posteriors.scale import std_from_rho
from ..sampling import Site, context, handed_over


class LatentNoise(Site):
    """The random numbers of a latent: for each datum in training, one set for all data of a sample in `predict`.

    shape: of the numbers of one datum. gumbel: standard Gumbel numbers instead of standard normal ones.
    """

    folds = True  # codes of several samples are one larger batch to the decoder
    device = torch.device("cpu")  # a few numbers: drawn there for `predict`, and moved to where they are needed

    def __init__(self, *shape: int, gumbel: bool = False) -> None:
        super().__init__()
        self.shape, self.gumbel, self.gaussian = shape, gumbel, not gumbel

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The numbers of one sample, in its shape."""
        if self.gumbel:
            return gumbel_noise(self.shape, generator=generator)
        return torch.randn(self.shape, generator=generator)

    def drawn(self, like: Tensor) -> Tensor:
        """What the context hands over, (*shape), or numbers for each datum, (batch, *shape) as ``like`` is."""
        if (given := handed_over(self)) is not None:
            return given.to(like)
        if self.gumbel:
            return gumbel_noise(like.shape, dtype=like.dtype, device=like.device)
        return torch.randn_like(like)

    def extra_repr(self) -> str:
        """How many numbers, of which kind."""
        return f"shape={self.shape}, {'gumbel' if self.gumbel else 'normal'}"


class Code(nn.Module):
    """q(z | x) as a function of an encoder's features; base of the codes that stand between encoder and decoder.

    size: how many numbers the decoder reads. has_density: whether the bounds on log p(x) exist.
    """

    size: int
    has_density: bool = True

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """A draw of the code, (batch, size), and KL(q(z | x) || p(z)) of each datum, (batch,)."""
        raise NotImplementedError

    def means(self, features: Tensor) -> Tensor:
        """The code without noise, (batch, size)."""
        raise NotImplementedError

    def weighted(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """A draw of the code and log p(z) - log q(z | x) of that draw, (batch,)."""
        raise NotImplementedError

    def prior_noise(self, generator: torch.Generator) -> Tensor:
        """The random numbers that one draw from the prior needs, (numbers,)."""
        return torch.randn(self.size, generator=generator)

    def from_prior(self, noise: Tensor) -> Tensor:
        """Codes from the prior, (n, size), as a function of numbers of `prior_noise`, (n, numbers)."""
        return noise

    def deployed(self, length: int) -> Code:
        """The code at its means, cut to a length, for `leanbayes.extract`."""
        raise ConversionError(f"extract: {type(self).__name__} has no form without noise; keep the whole model")


class Moments(nn.Module):
    """mean(x) and std(x) of independent Gaussian latents, by two linear layers."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.mean, self.rho = nn.Linear(features, size), nn.Linear(features, size)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(features), std_from_rho(self.rho(features)) + 1e-6


class GaussianHead(Moments):
    """mean(x) and std(x) of independent Gaussian latents, and their noise."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__(features, size)
        self.noise = LatentNoise(size)

    def draw(self, mean: Tensor, std: Tensor) -> Tensor:
        """mean + std * noise; the mean itself under ``mean_only``."""
        return mean if context.mean_only else mean + std * self.noise.drawn(mean)


def gaussian_kl(mean: Tensor, std: Tensor) -> Tensor:
    """KL(N(mean, std^2) || N(0, 1)), elementwise.

    >>> gaussian_kl(torch.tensor([0.0, 1.0]), torch.ones(2))
    tensor([0.0000, 0.5000])
    """
    return 0.5 * (mean.square() + std.square() - 1) - std.log()


def log_ratio(h: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(h; 0, 1) - log N(h; mean, std^2), elementwise.

    >>> log_ratio(torch.ones(1), torch.ones(1), torch.ones(1))
    tensor([-0.5000])
    """
    return 0.5 * (((h - mean) / std).square() - h.square()) + std.log()


class GaussianCode(Code):
    """The code of a VAE."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.head = GaussianHead(features, size)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.head(features)
        return self.head.draw(mean, std), gaussian_kl(mean, std).sum(1)

    def means(self, features: Tensor) -> Tensor:
        return self.head.mean(features)  # type: ignore[no-any-return]

    def weighted(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.head(features)
        h = self.head.draw(mean, std)
        return h, log_ratio(h, mean, std).sum(1)

    def deployed(self, length: int) -> Code:
        return PointCode.cut(self.head.mean, length)


class PointCode(Code):
    """A code without noise: that of a sliced Wasserstein autoencoder, and what `leanbayes.extract` leaves of others.

    In training the second result is ``weight`` times the sliced Wasserstein distance between the codes of the batch
    and as many draws from N(0, 1), the same for every datum of the batch; otherwise it is 0.
    """

    has_density = False

    def __init__(self, features: int, size: int, weight: float = 0.0, projections: int = 50) -> None:
        super().__init__()
        self.size, self.weight, self.projections = size, weight, projections
        self.mean = nn.Linear(features, size)

    @classmethod
    def cut(cls, mean: nn.Linear, length: int) -> PointCode:
        """The first outputs of a layer as a code."""
        made = cls(mean.in_features, length).to(mean.weight)
        with torch.no_grad():
            made.mean.weight.copy_(mean.weight[:length])
            made.mean.bias.copy_(mean.bias[:length])
        return made

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        code = self.mean(features)
        if not self.training or not self.weight:
            return code, code.new_zeros(len(code))
        distance = sliced_wasserstein(code, torch.randn_like(code), self.projections)
        return code, (self.weight * distance).expand(len(code))

    def means(self, features: Tensor) -> Tensor:
        return self.mean(features)  # type: ignore[no-any-return]

    def deployed(self, length: int) -> Code:
        return PointCode.cut(self.mean, length)


def sliced_wasserstein(a: Tensor, b: Tensor, projections: int = 50) -> Tensor:
    """The mean squared distance between sorted projections of two sets of points onto random directions.

    a, b: (n, size), as many points each.

    >>> x = torch.randn(64, 3)
    >>> sliced_wasserstein(x, x.flip(0)).item()
    0.0
    """
    directions = torch.randn(a.shape[1], projections, dtype=a.dtype, device=a.device)
    directions = directions / directions.norm(dim=0).clamp_min(math.sqrt(torch.finfo(a.dtype).tiny))
    return ((a @ directions).sort(0).values - (b @ directions).sort(0).values).square().mean()
