"""Ordered latents: Gaussians given a Downhill mask, both conditioned on the input (VND-AE, equations 22 to 24)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConversionError
from ..ordering import BernoulliChain, expected_cost, exponential, slope, tail_kl, with_floor
from ..ordering.ordered import Ordered
from ..sampling import context
from ..training.callbacks import Callback, State
from .code import Code, GaussianHead, LatentNoise, PointCode, gaussian_kl, log_ratio
from .config import OrderedLatents


class OrderedCode(Ordered, Code):
    """A code of which the first latents are kept, as many as a draw of q(v_j | x) = beta_j(x) says; the others are 0.

    KL(q(h, z | x) || p(h, z)) = sum_j beta_j log(beta_j / p(v_j)) + sum_i S_i kappa_i, S_i = sum_{k >= i} beta_k, with
    kappa_i the KL of latent i: A18, whose second term has beta_i in place of S_i, corrected. At a set length it is
    the sum of the first kappas.

    width: how many latents are kept, 0 to sample; `leanbayes.set_length_` and `leanbayes.set_width_` set it.
    """

    log_prior: Tensor
    temperature: Tensor

    def __init__(self, features: int, config: OrderedLatents) -> None:
        super().__init__("code", config.size)
        self.size, self.config = config.size, config
        self.head = GaussianHead(features, config.size)
        self.tail_noise = LatentNoise(config.size, gumbel=True)
        keep, size = config.prior_keep, config.size
        prior = BernoulliChain.uniform(size) if keep is None else BernoulliChain.constant(size, keep)
        uniform = BernoulliChain.uniform(size).log_tails
        self.register_buffer("log_prior", uniform if config.tails == "uniform" else prior.log_tails, persistent=False)
        self.register_buffer("temperature", torch.tensor(config.temperature))
        self.tail: nn.Linear | None = None
        if config.tails == "learned":
            self.tail = nn.Linear(features, size)
            nn.init.zeros_(self.tail.weight)  # tails start uniform, whatever the features
            nn.init.zeros_(self.tail.bias)

    def tails_of(self, features: Tensor) -> Tensor:
        """log beta_j(x), (batch, K)."""
        if self.tail is None:
            log_beta = self.log_prior.expand(len(features), -1)
        else:
            log_beta = with_floor(F.log_softmax(self.tail(features), -1), self.config.floor, self.config.whole)
        return self.within_limit(log_beta)

    def tails(self) -> Tensor:
        """log beta_j, (K,), where it does not depend on the input."""
        if self.tail is None:
            return self.within_limit(self.log_prior)
        raise ConversionError(
            f"'{self.name}': the tails of this code depend on the input; model.lengths(x) gives the likely lengths"
        )

    def lengths(self, features: Tensor) -> Tensor:
        """The most probable length of each datum, (batch,); the shortest of equals."""
        return self.tails_of(features).argmax(1) + 1

    def likely(self, features: Tensor) -> Tensor:
        """Means of the latents within the most probable length of each datum, zeros behind, (batch, K)."""
        mean: Tensor = self.head.mean(features)
        return mean * self.kept(self.lengths(features).unsqueeze(1), mean)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.head(features)
        kappa = gaussian_kl(mean, std)
        if self.width or context.mean_only:
            kept = self.kept(self.width or self.limit, mean)
            return self.head.draw(mean, std) * kept, (kappa * kept).sum(1)
        log_beta = self.tails_of(features)
        hard = self.config.hard or self.tail is None or not self.training
        z = slope(log_beta, self.temperature, self.tail_noise.drawn(log_beta), hard)
        kl = tail_kl(log_beta, self.within_limit(self.log_prior)) + expected_cost(log_beta, kappa)
        return self.head.draw(mean, std) * z, kl

    def means(self, features: Tensor) -> Tensor:
        mean: Tensor = self.head.mean(features)
        return mean * self.kept(self.width or self.limit, mean)

    def weighted(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.head(features)
        h = self.head.draw(mean, std)
        if self.width:
            kept = self.kept(self.width, mean)
            return h * kept, (log_ratio(h, mean, std) * kept).sum(1)
        log_beta = self.tails_of(features)
        last = (log_beta + self.tail_noise.drawn(log_beta)).argmax(1, keepdim=True)
        kept = (torch.arange(self.nodes, device=mean.device) <= last).to(mean)
        of_length = (self.within_limit(self.log_prior) - log_beta).gather(1, last).squeeze(1)
        return h * kept, of_length + (log_ratio(h, mean, std) * kept).sum(1)

    def kept(self, length: int | Tensor, like: Tensor) -> Tensor:
        """The mask of a length, (K,), or of one for each datum, (batch, 1) to (batch, K)."""
        return (torch.arange(self.nodes, device=like.device) < length).to(like)

    def callbacks(self) -> list[Any]:
        return [] if self.tail is None or self.config.final_temperature is None else [Annealing(self)]

    def deployed(self, length: int) -> Code:
        return PointCode.cut(self.head.mean, length)

    def extra_repr(self) -> str:
        """How long the code is."""
        return f"size={self.nodes}, tails {self.config.tails}, length {self.width or 'sampled'}"


class Annealing(Callback):
    """Lets the temperature of a code fall with the training step."""

    def __init__(self, code: Any) -> None:  # with `config` and `temperature`
        self.code = code

    def before_step(self, state: State) -> None:
        """The temperature of the step."""
        config = self.code.config
        assert config.final_temperature is not None
        now = exponential(state.step, config.temperature, config.final_temperature, config.anneal_steps)
        self.code.temperature.fill_(now)
