"""A hierarchical VAE whose depth is ordered: variational nested dropout over its blocks (section 6.2.2)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import checks
from ..batches import LatentOutput, accept
from ..errors import ConfigError, DataError, PredictionError
from ..eval_mode import undisturbed
from ..ordering import BernoulliChain, expected_width, slope, tail_kl
from ..ordering.ordered import Ordered
from ..posteriors.scale import std_from_rho
from ..sampling import context, mix, using
from .autoencoder import ROWS, check_finite, likelihood_of
from .code import LatentNoise


class OrderedDepth(Ordered):
    """Tail probabilities over the number of blocks in use, learned, the same for all data.

    forward: the mask of each datum, (batch, K) or (K,), and KL(q(z) || p(z)), a number.
    """

    log_prior: Tensor

    def __init__(self, blocks: int, prior_keep: float | None = None, temperature: float = 1.0) -> None:
        super().__init__("depth", blocks)
        chain = BernoulliChain.uniform(blocks) if prior_keep is None else BernoulliChain.constant(blocks, prior_keep)
        self.register_buffer("log_prior", chain.log_tails, persistent=False)
        self.raw = nn.Parameter(torch.zeros(blocks))
        self.temperature = temperature
        self.noise = LatentNoise(blocks, gumbel=True)

    def tails(self) -> Tensor:
        """log beta_j, (K,)."""
        return self.within_limit(F.log_softmax(self.raw, 0))

    def forward(self, rows: int) -> tuple[Tensor, Tensor]:
        if self.width or context.mean_only:
            kept = torch.arange(self.nodes, device=self.raw.device) < (self.width or self.limit)
            return kept.to(self.raw), self.raw.new_zeros(())
        log_beta = self.tails()
        mask = slope(log_beta, self.temperature, self.noise.drawn(log_beta.expand(rows, -1)), hard=True)
        return mask, tail_kl(log_beta, self.within_limit(self.log_prior))


class Block(nn.Module):
    """One step of the ladder: q(z | state, features), p(z | state), and what z adds to the state."""

    def __init__(self, channels: int, latents: int, side: int) -> None:
        super().__init__()
        self.prior = _convolutions(channels, channels, 2 * latents)
        self.posterior = _convolutions(2 * channels, channels, 2 * latents)
        self.out = _convolutions(channels + latents, channels, channels)
        self.noise = LatentNoise(latents, side, side)
        with torch.no_grad():  # a block starts by adding little, and with its posterior near its prior
            for part in (self.prior, self.posterior, self.out):
                part[-1].weight.mul_(0.1)  # type: ignore[operator]

    def forward(self, state: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the state, and the KL of each datum, (batch,)."""
        p_mean, p_std = _moments(self.prior(state))
        q_mean, q_std = _moments(self.posterior(torch.cat([state, features], 1)))
        z = q_mean if context.mean_only else q_mean + q_std * self.noise.drawn(q_mean)
        ratio, shift = q_std / p_std, (q_mean - p_mean) / p_std
        kl = 0.5 * (ratio.square() + shift.square() - 1) - ratio.log()
        return self.add(state, z), kl.flatten(1).sum(1)

    def generate(self, state: Tensor, noise: Tensor) -> Tensor:
        """What a draw from the prior adds to the state."""
        mean, std = _moments(self.prior(state))
        return self.add(state, mean + std * noise)

    def add(self, state: Tensor, z: Tensor) -> Tensor:
        """What z adds to the state."""
        return self.out(torch.cat([state, z], 1))  # type: ignore[no-any-return]


class HierarchicalVAE(nn.Module):
    """A ladder of latent maps from coarse to fine (Sonderby et al., 2016; Child, 2021) that can be cut at any depth.

    Block l adds to the state what a draw of z_l, given the state, says; an ordered mask decides how many blocks do.
    The KL of a datum is KL(q(v) || p(v)) + sum_l z_l kappa_l, with kappa_l the KL of block l given those before it.
    Blocks beyond a set depth are not computed.

    shape: of images. blocks: how many at each resolution, the coarsest first; the finest is half that of the images,
        whose side 2^resolutions has to divide.
    channels: of the state. latents: maps of each z. prior_keep: of the chain over depths; None for a uniform prior.

    `leanbayes.set_length_` sets a depth, `leanbayes.likely_width` and `likely_depth` give the most probable one.

    >>> model = HierarchicalVAE((1, 8, 8), blocks=(2, 2), channels=4, latents=1)
    >>> model(torch.rand(3, 1, 8, 8)).outputs.shape, model.sample(2, depth=1, task="bernoulli").shape
    (torch.Size([3, 1, 8, 8]), torch.Size([2, 1, 8, 8]))
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 28, 28),
        blocks: tuple[int, ...] = (6, 6),
        channels: int = 24,
        latents: int = 2,
        prior_keep: float | None = None,
    ) -> None:
        super().__init__()
        sizes = checks.iterable_of("shape", shape, "sizes", checks.whole_number, hint="try (1, 28, 28)")
        counts = checks.iterable_of("blocks", blocks, "numbers of blocks", checks.whole_number, hint="try (6, 6)")
        checks.whole_number("channels", channels)
        checks.whole_number("latents", latents)
        step = 2 ** len(counts)
        if len(sizes) != 3 or sizes[1] != sizes[2] or not counts or sizes[1] % step:
            raise ConfigError(
                f"shape: expected (channels, side, side) with a side that is a multiple of {step}, for {len(counts)} "
                f"resolutions, received {shape}"
            )
        self.shape = (sizes[0], sizes[1], sizes[2])
        self.sides = [sizes[1] // 2 ** (len(counts) - level) for level, n in enumerate(counts) for _ in range(n)]
        self.stem = nn.Conv2d(sizes[0], channels, 4, stride=2, padding=1)
        self.down = nn.ModuleList(_convolutions(channels, channels, channels) for _ in counts)
        self.start = nn.Parameter(torch.zeros(channels, self.sides[0], self.sides[0]))
        self.blocks = nn.ModuleList(Block(channels, latents, side) for side in self.sides)
        self.depth = OrderedDepth(len(self.blocks), prior_keep)
        self.head = nn.ConvTranspose2d(channels, sizes[0], 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> LatentOutput:
        if x.shape[1:] != self.shape:
            raise DataError(f"x: expected images of shape (n, *{self.shape}), received {tuple(x.shape)}")
        features = self._features(x)
        mask, kl = self.depth(len(x))
        state, total = self.start.expand(len(x), *self.start.shape), kl.expand(len(x))
        for number, (block, side) in enumerate(zip(self._used(), self.sides, strict=False)):
            state = _at(state, side)
            added, kappa = block(state, features[side])
            keep = mask[..., number]
            state = state + (keep.reshape(-1, 1, 1, 1) if keep.ndim else keep) * added
            total = total + keep * kappa
        return LatentOutput(self.head(_at(state, self.sides[-1])), total, x)

    def likely_depth(self) -> int:
        """The most probable number of blocks, argmax_k q(v_k); the least of equals."""
        return int(self.depth.tails().argmax()) + 1

    def mean_depth(self) -> float:
        """How many blocks are in use on average."""
        return float(expected_width(self.depth.tails().detach()))

    def reconstruct(self, x: Any, depth: int | None = None, *, task: Any = None) -> Tensor:
        """The expected image behind each input, at the means of its latents, with so many blocks."""
        meaning = likelihood_of(self, task)
        x = accept(x, self, name="x")
        if not isinstance(x, Tensor):
            raise DataError(f"x: expected a tensor of images, received {type(x).__name__}")
        check_finite("x", x)
        before, self.depth.width = self.depth.width, self._depth(depth)
        try:
            with undisturbed(self), using(mean_only=True):
                return torch.cat([meaning.mean_and_noise(self(block).outputs)[0] for block in x.split(ROWS)])
        finally:
            self.depth.width = before

    def sample(self, n: int, depth: int | None = None, seed: int = 0, *, task: Any = None) -> Tensor:
        """Images from the prior, (n, *shape); the i-th depends on (seed, i) and the depth alone."""
        meaning = likelihood_of(self, task)
        n, seed = checks.whole_number("n", n, error=PredictionError), checks.seed(seed, error=PredictionError)
        depth = self._depth(depth)
        ladder: Any = self.blocks
        shapes: list[tuple[int, ...]] = [block.noise.shape for block in ladder]
        count = sum(map(math.prod, shapes))
        numbers = [torch.randn(count, generator=torch.Generator().manual_seed(mix(seed, i))) for i in range(n)]
        made = []
        for part in torch.stack(numbers).to(self.start).split(ROWS):
            with undisturbed(self):
                made.append(meaning.mean_and_noise(self._generated(part, shapes, depth))[0])
        return torch.cat(made)

    def _generated(self, numbers: Tensor, shapes: list[Any], depth: int) -> Tensor:
        parts = numbers.split([math.prod(shape) for shape in shapes], 1)
        state = self.start.expand(len(numbers), *self.start.shape)
        for block, side, noise, shape in list(zip(self.blocks, self.sides, parts, shapes, strict=True))[:depth]:
            state = _at(state, side)
            state = state + block.generate(state, noise.reshape(-1, *shape))  # type: ignore[operator]
        return self.head(_at(state, self.sides[-1]))  # type: ignore[no-any-return]

    def _features(self, x: Tensor) -> dict[int, Tensor]:
        """What the encoder sees at each resolution, by its side."""
        found, at = {}, self.stem(x)
        for part in self.down:
            at = at + part(at)
            found[at.shape[-1]] = at
            at = F.avg_pool2d(at, 2) if at.shape[-1] > self.sides[0] else at
        return found

    def _used(self) -> Any:
        """The blocks that this pass computes: those within a set depth, or all."""
        return self.blocks[: self.depth.width or self.depth.limit]

    def _depth(self, depth: int | None) -> int:
        if depth is None:
            return self.depth.width or self.depth.limit
        return checks.whole_number("depth", depth, at_most=self.depth.nodes, error=PredictionError)


def _convolutions(inputs: int, channels: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.GELU(), nn.Conv2d(inputs, channels, 3, padding=1), nn.GELU(), nn.Conv2d(channels, outputs, 1)
    )


def _moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    mean, rho = maps.chunk(2, 1)
    return mean, std_from_rho(rho + math.log(math.e - 1)) + 1e-4  # a std of 1 where rho is 0


def _at(state: Tensor, side: int) -> Tensor:
    """The state at a finer resolution."""
    return state if state.shape[-1] == side else F.interpolate(state, size=(side, side), mode="nearest")
