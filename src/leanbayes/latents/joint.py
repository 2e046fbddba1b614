"""Gaussian latents beside categorical ones: the code of Joint-VAE."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ordering import gumbel_noise
from ..sampling import context
from .code import Code, GaussianHead, LatentNoise, gaussian_kl, log_ratio
from .config import JointLatents


class JointCode(Code):
    """[h, c_1, ..., c_m]: Gaussians, then one-hot categorical latents, relaxed by Gumbel-softmax in training.

    KL(q(c | x) || p(c)) = log C + sum_c q(c | x) log q(c | x) under a uniform prior over C values: that of hard draws.
    """

    def __init__(self, features: int, config: JointLatents) -> None:
        super().__init__()
        self.size, self.config = config.width, config
        self.head = GaussianHead(features, config.size)
        self.logits = nn.Linear(features, sum(config.categories))
        self.choice_noise = LatentNoise(sum(config.categories), gumbel=True)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.head(features)
        kl = gaussian_kl(mean, std).sum(1)
        scores = self._scores(features)
        for part in scores:
            kl = kl + (part.exp() * part).sum(1) + torch.tensor(float(part.shape[1])).log()
        return torch.cat([self.head.draw(mean, std), *self._chosen(scores)], 1), kl

    def means(self, features: Tensor) -> Tensor:
        chosen = [_one_hot(part) for part in self._scores(features)]
        return torch.cat([self.head.mean(features), *chosen], 1)

    def weighted(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.head(features)
        h, scores = self.head.draw(mean, std), self._scores(features)
        chosen = self._chosen(scores, hard=True)
        ratio = log_ratio(h, mean, std).sum(1)
        for part, one in zip(scores, chosen, strict=True):
            ratio = ratio - (part * one).sum(1) - torch.tensor(float(part.shape[1])).log()
        return torch.cat([h, *chosen], 1), ratio

    def prior_noise(self, generator: torch.Generator) -> Tensor:
        normal = torch.randn(self.config.size, generator=generator)
        return torch.cat([normal, gumbel_noise((sum(self.config.categories),), generator=generator)])

    def from_prior(self, noise: Tensor) -> Tensor:
        normal, rest = noise[:, : self.config.size], noise[:, self.config.size :]
        return torch.cat([normal, *(_one_hot(part) for part in rest.split(self.config.categories, 1))], 1)

    def _scores(self, features: Tensor) -> list[Tensor]:
        """log q(c | x) of every categorical latent, (batch, C) each."""
        parts = self.logits(features).split(self.config.categories, 1)
        return [F.log_softmax(part, 1) for part in parts]

    def _chosen(self, scores: list[Tensor], hard: bool = False) -> list[Tensor]:
        if context.mean_only:
            return [_one_hot(part) for part in scores]
        noise = self.choice_noise.drawn(torch.cat(scores, 1))
        noisy = [part + g for part, g in zip(scores, noise.split(self.config.categories, -1), strict=True)]
        if hard or not self.training:
            return [_one_hot(part) for part in noisy]
        return [F.softmax(part / self.config.temperature, 1) for part in noisy]


def _one_hot(scores: Tensor) -> Tensor:
    return F.one_hot(scores.argmax(1), scores.shape[1]).to(scores)
