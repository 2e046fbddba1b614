"""Latent codes with a prior that reads the image and a posterior that reads the labels as well (equations 25 to 30)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConversionError
from ..latents.code import LatentNoise, Moments, gaussian_kl
from ..latents.config import GaussianLatents, OrderedLatents
from ..latents.ordered import Annealing
from ..ordering import BernoulliChain, expected_cost, slope, tail_kl, with_floor
from ..ordering.ordered import Ordered
from ..sampling import context


class ConditionalCode(nn.Module):
    """p(z | x) and q(z | x, y) of a code z as functions of features; base of the codes of a probabilistic U-Net.

    size: how many numbers the code has.
    """

    size: int
    noise: LatentNoise

    def forward(self, prior: Tensor, posterior: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """A draw (batch, size) from the posterior and KL(q || p) of each datum, (batch,); or one from the prior, None.

        prior, posterior: features, (batch, features).
        """
        raise NotImplementedError

    def draw(self, mean: Tensor, std: Tensor) -> Tensor:
        """mean + std * noise; the mean itself under ``mean_only``."""
        return mean if context.mean_only else mean + std * self.noise.drawn(mean)


class GaussianConditionalCode(ConditionalCode):
    """Independent Gaussians p(h_i | x) and q(h_i | x, y) (Kohl et al., 2018)."""

    def __init__(self, features: int, config: GaussianLatents) -> None:
        super().__init__()
        self.size = config.size
        self.prior, self.posterior = (Moments(features, config.size) for _ in range(2))
        self.noise = LatentNoise(config.size)

    def forward(self, prior: Tensor, posterior: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        p = self.prior(prior)
        if posterior is None:
            return self.draw(*p), None
        q = self.posterior(posterior)
        return self.draw(*q), kappa(q, p).sum(1)

    def extra_repr(self) -> str:
        """How long the code is."""
        return f"size={self.size}"


class OrderedConditionalCode(Ordered, ConditionalCode):
    """A code of which the first latents are kept, as many as a draw of p(v_j | x) or q(v_j | x, y) says: VND-PUNet.

    KL(q || p) = sum_j beta_j log(beta_j / p(v_j | x)) + sum_i S_i kappa_i, S_i = sum_{k >= i} beta_k: equation 30,
    whose second term has beta_i in place of S_i, corrected, since a latent is paid for whenever it is kept. At a set
    length it is the sum of the first kappas. What is not kept is zero.

    The tails of prior and posterior start at those of a chain, ``prior_keep``; both are learned from there.

    width: how many latents are kept, 0 to sample; `leanbayes.set_length_` and `leanbayes.set_width_` set it.
    """

    temperature: Tensor

    def __init__(self, features: int, config: OrderedLatents) -> None:
        super().__init__("code", config.size)
        self.size, self.config = config.size, config
        self.prior, self.posterior = (Moments(features, config.size) for _ in range(2))
        self.noise, self.tail_noise = LatentNoise(config.size), LatentNoise(config.size, gumbel=True)
        self.register_buffer("temperature", torch.tensor(config.temperature))
        self.prior_tail, self.posterior_tail = (nn.Linear(features, config.size) for _ in range(2))
        keep = None if config.tails == "uniform" else config.prior_keep
        start = BernoulliChain.uniform(config.size) if keep is None else BernoulliChain.constant(config.size, keep)
        for tail in (self.prior_tail, self.posterior_tail):
            nn.init.zeros_(tail.weight)  # whatever the image
            tail.bias.data.copy_(start.log_tails)
            tail.requires_grad_(config.tails == "learned")

    def forward(self, prior: Tensor, posterior: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        p = self.prior(prior)
        q = p if posterior is None else self.posterior(posterior)
        if self.width or context.mean_only:
            kept = self.kept(q[0])
            return self.draw(*q) * kept, None if posterior is None else (kappa(q, p) * kept).sum(1)
        p_tails = self.tails_of(self.prior_tail(prior))
        q_tails = p_tails if posterior is None else self.tails_of(self.posterior_tail(posterior))
        hard = self.config.hard or self.config.tails == "uniform" or not self.training
        mask = slope(q_tails, self.temperature, self.tail_noise.drawn(q_tails), hard)
        kl = None if posterior is None else tail_kl(q_tails, p_tails) + expected_cost(q_tails, kappa(q, p))
        return self.draw(*q) * mask, kl

    def tails_of(self, scores: Tensor) -> Tensor:
        """log beta_j, (batch, K), of what a linear layer says and of the floor."""
        config = self.config
        whole = config.whole if config.tails == "learned" else 0.0
        return self.within_limit(with_floor(F.log_softmax(scores, -1), config.floor, whole))

    def tails(self) -> Tensor:
        """log beta_j, (K,), where it does not depend on the image."""
        if self.config.tails == "uniform":
            return self.tails_of(self.prior_tail.bias)
        raise ConversionError(f"'{self.name}': the tails of this code depend on the image; model.lengths(x) has them")

    def kept(self, like: Tensor) -> Tensor:
        """The mask of the length that is set, or of all, (K,)."""
        return (torch.arange(self.nodes, device=like.device) < (self.width or self.limit)).to(like)

    def callbacks(self) -> list[Any]:
        return [] if self.config.final_temperature is None else [Annealing(self)]

    def extra_repr(self) -> str:
        return f"size={self.nodes}, tails {self.config.tails}, length {self.width or 'sampled'}"


def kappa(q: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]) -> Tensor:
    """KL(N(q) || N(p)) of Gaussians given as (mean, std), elementwise.

    >>> one = torch.ones(1)
    >>> kappa((2 * one, one), (one, one))
    tensor([0.5000])
    """
    return gaussian_kl((q[0] - p[0]) / p[1], q[1] / p[1])
