"""`OnePass`: outputs by one pass on moments, in the place of an `Engine` that samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from ... import batches, checks, sampling
from ...errors import LeanBayesWarning, PredictionError
from ..engine import LOOP_ROWS, Engine
from ..own_noise import OwnNoise
from . import arithmetic, elementwise, layers, layout, linear, norms, pooling  # noqa: F401  (they register rules)
from .law import Draws
from .outputs import drawn
from .rules import NotCarried
from .walk import TooLarge, Walk


@dataclass
class OnePass:
    """Outputs of a model for a batch of inputs, as `Engine` gives them.

    samples: how many are drawn where a layer has no rule. chunk: the most data that go through at once.
    used: "moments"; "moments, then samples" where a layer on the way has no rule; that of an `Engine` where there can
        be no such pass. reasons: why, by layer.
    """

    model: nn.Module
    samples: int
    seed: int
    chunk: int | None = None
    used: str = field(default="moments", init=False)
    reasons: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.rows = self.chunk or LOOP_ROWS
        self.own = OwnNoise(self.model)
        self.carries = sampling.is_random(self.model)

    @cached_property
    def sampler(self) -> Engine:
        """Samples the model where it has to be; to prepare it takes a tenth of a pass of a small network."""
        return Engine(self.model, self.samples, self.seed, self.chunk)

    def numbered(self, inputs: Any) -> Iterator[tuple[Any, Iterator[tuple[list[int], Tensor]]]]:
        """Pieces of the inputs, each with groups of outputs (draws, data, ...) and their numbers."""
        total, start = batches.size(inputs), 0
        while start < total:
            stop = min(start + self.rows, total)
            if total - stop == 1 and self.rows > 2:  # some models cannot run on a single datum
                stop -= 1
            block = batches.rows(inputs, start, stop)
            try:
                said = self._carried(block)
            except TooLarge:
                self.rows = max(1, (stop - start) // 2)
                continue
            if said is None:
                yield from self._sampled(batches.rows(inputs, start, total))
                return
            yield block, iter([(list(range(len(said))), said)])
            start = stop

    def _carried(self, block: Any) -> Tensor | None:
        """Outputs (draws, data, ...); None where the model has to be sampled from the start."""
        if not self.carries:
            return None
        self.own.reseed(self.seed, 0)
        before = self.own.states()
        walk = Walk(self.model, self.samples, self.seed, self._noise)
        try:
            law = walk(block)
            if isinstance(law, Tensor):
                raise NotCarried("its output does not depend on its random layers")
            if not walk.reasons and self.own.drawn_since(before):
                raise NotCarried("it draws random numbers of its own")
        except TooLarge:
            raise
        except Exception as error:  # refusals have no common type; a model's own fault shows again when it is sampled
            why = str(error) if isinstance(error, NotCarried) else f"{type(error).__name__}: {error}"
            self._say({type(self.model).__name__: why.splitlines()[0][:200]}, "from the start")
            self.carries = False
            return None
        if isinstance(law, Draws):
            self._say(walk.reasons, "from there on")
            self.used = "moments, then samples"
            return law.values
        return drawn(law, self.seed)

    def _sampled(self, inputs: Any) -> Iterator[tuple[Any, Iterator[tuple[list[int], Tensor]]]]:
        for block, groups in self.sampler.numbered(inputs):
            self.used = self.sampler.used
            yield block, groups

    def _noise(self) -> list[Any]:
        """The noise of the sites in every sample; those that learn a shape from the input draw for themselves."""
        found = []
        for sample in range(self.samples):
            noise = self.sampler._noise(sample)
            noise.sites = {k: v for k, v in noise.sites.items() if not v[1].learns_shape}  # type: ignore[attr-defined]
            found.append(noise)
        return found

    def _say(self, reasons: dict[str, str], where: str) -> None:
        news = {layer: reason for layer, reason in reasons.items() if layer not in self.reasons}
        self.reasons |= news
        for layer, reason in news.items():
            warnings.warn(
                f"{layer} ({reason}) has no rule for moments, so that {self.samples} samples are drawn {where}",
                LeanBayesWarning,
                stacklevel=4,
            )


def one_pass(model: nn.Module, samples: int, seed: int, chunk: int | None, others: dict[str, Any]) -> OnePass:
    """The engine of ``predict(..., estimator="moments")``; options that belong to samples are refused."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise PredictionError(
                f"{name}: expected nothing with estimator='moments', since no networks are drawn, received "
                f"{checks.short(value)}; leave it out, or take estimator='weight'"
            )
    return OnePass(model, samples, seed, chunk)
