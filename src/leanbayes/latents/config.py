"""What stands between an encoder and a decoder: configs of latent codes. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..config import check_between, check_choice, check_flag, check_positive, check_whole, configurable
from ..errors import ConfigError

Tails = Literal["learned", "uniform"]


@dataclass(frozen=True)
class Latents:
    """Base of the configs. size: how many numbers a code has."""

    size: int = 32

    def __post_init__(self) -> None:
        check_whole(self, "size")


@configurable
@dataclass(frozen=True)
class GaussianLatents(Latents):
    """Independent Gaussians q(h_i | x) = N(mean_i(x), std_i(x)^2) under N(0, 1): a variational autoencoder (VAE).

    A beta-VAE is trained with ``lb.fit(..., latent_weight=beta)``.

    >>> GaussianLatents(16)
    GaussianLatents(size=16)
    """


@configurable
@dataclass(frozen=True)
class OrderedLatents(Latents):
    """Latents in an order of importance, so that a code can be cut to any length: VND-AE (Cui et al., section 4.1).

    Exactly the first j latents are kept with probability beta_j(x), which the encoder gives; those beyond are zero,
    which is also what a shorter code is decoded with. (The paper has them drawn from a wide Gaussian, equation 22,
    which no shorter code at test time agrees with.)

    tails: "learned", beta(x) by softmax; "uniform", every length equally often: nested dropout on the code.
    prior_keep: of the Bernoulli chain, p(z_j = 1 | z_{j-1} = 1); None for a prior under which all lengths are equally
        likely.
    floor: the share of the tail probability that is given, whatever the encoder says, so that all lengths are trained.
        At 0 the likely lengths are a little better, and short and whole codes worse.
    whole: the part of the floor that is on the whole code; the rest is spread evenly over the lengths.
    hard: masks of zeros and ones in training too, with the gradient of relaxed ones (straight-through). Where a mask is
        one, that gradient hides what a latent is worth, and fewer latents come into use. Outside of training masks are
        always hard.
    temperature: of the relaxation. With a final_temperature it falls to that within anneal_steps training steps.

    >>> OrderedLatents(16).prior_keep
    0.95
    """

    version: ClassVar[int] = 2
    before: ClassVar[dict[int, dict[str, float]]] = {1: {"whole": 0.0}}

    tails: Tails = "learned"
    prior_keep: float | None = 0.95
    floor: float = 0.5
    temperature: float = 1.0
    final_temperature: float | None = 0.1
    anneal_steps: int = 1000
    hard: bool = False
    whole: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "tails", ("learned", "uniform"))
        if self.prior_keep is not None:
            check_positive(self, "prior_keep")
            check_between(self, "prior_keep", 0, 1, open_high=True)
        check_between(self, "floor", 0, 1)
        check_between(self, "whole", 0, 1)
        check_positive(self, "temperature")
        if self.final_temperature is not None:
            check_positive(self, "final_temperature")
        check_whole(self, "anneal_steps")
        check_flag(self, "hard")


@configurable
@dataclass(frozen=True)
class JointLatents(Latents):
    """Gaussian latents beside categorical ones, relaxed by Gumbel-softmax in training: Joint-VAE (Dupont, 2018).

    categories: how many values each categorical latent has; the decoder reads them one-hot behind the ``size``
        Gaussians. temperature: of the relaxation. The loss is the plain ELBO: the capacities of the paper, which push
        the KL up to a given number of nats, are not here.

    >>> JointLatents(16, categories=(10,)).width
    26
    """

    categories: tuple[int, ...] = (10,)
    temperature: float = 0.67

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "temperature")
        whole = isinstance(self.categories, tuple) and all(type(n) is int and n >= 2 for n in self.categories)
        if not whole or not self.categories:
            raise ConfigError(
                f"JointLatents.categories: expected whole numbers of at least 2, received {self.categories!r}; "
                "try (10,)"
            )

    @property
    def width(self) -> int:
        """How many numbers the decoder reads."""
        return self.size + sum(self.categories)


@configurable
@dataclass(frozen=True)
class PointLatents(Latents):
    """A code without noise whose distribution over a batch is pulled towards N(0, 1): SWAE (Kolouri et al., 2019).

    weight: of the sliced Wasserstein distance. projections: how many directions it looks along.

    >>> PointLatents(16).projections
    50
    """

    weight: float = 100.0
    projections: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "weight")
        check_whole(self, "projections")
