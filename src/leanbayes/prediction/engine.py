"""Drawing outputs of whole networks from the posterior, in a loop or vectorised."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, sampling
from ..errors import LeanBayesWarning, PredictionError
from . import draws
from .own_noise import OwnNoise
from .pooling import fast_max_pooling
from .probe import NARROW, OWN_WEIGHTS, Probe, fewest, known, probe, signature
from .weights import Weights

LOOP_ROWS = 256
VMAP_PAIRS = 2048
VMAP_NOISE = 2**25  # the most random numbers in memory at once
GATHERED = 2**18  # output values of a loop that are yielded together
FOLDED = 2**22  # values in the largest activation of a pass with samples in its batch dimension


@dataclass
class Engine:
    """Draws S outputs of a model for a batch of inputs.

    chunk: the most (datum, sample) pairs computed at once. None: 256 data a pass in a loop; 2,048 pairs under vmap, or
        as many as have 2^22 values in their largest activation if only norm layers differ between samples. A pass under
        vmap also has at most as many samples as have 2^25 random numbers together.
    strategy: "loop" runs the network once per sample; "vmap" runs everything before the first random layer once for all
        samples; "auto" counts the arithmetic for one datum and takes the cheaper.
    estimator: "weight" draws whole networks: the same noise for every datum, keyed by (seed, site, sample). Noise that
        the model draws itself from torch's generator is keyed by (seed, sample): such a model runs in a loop, and one
        without random sites takes all samples once it is seen to draw.
    group: samples yielded at a time, if the caller may stop early; None for as many as fit.
    balanced: see `draws.noise`. begin: the number of the first sample.
    """

    model: nn.Module
    samples: int
    seed: int
    chunk: int | None = None
    mean_only: bool = False
    estimator: str = "weight"
    strategy: str = "auto"
    group: int | None = None
    balanced: bool | None = None
    begin: int = 0
    used: str = field(default="", init=False)
    done: int = field(default=0, init=False)
    together: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.sites = list(sampling.sites(self.model).values())
        self.numbers = {id(site): i for i, site in enumerate(self.sites)}
        self.found = Probe(0.0)
        self.pairs = VMAP_PAIRS
        self.most, self.data, self.keeps_noise = 1, 1, False
        self.least, self.apart = fewest(self.model), False
        self.drawn_with, self.asked = self.seed, self.samples
        self.own = OwnNoise(self.model)
        self.arranged: dict[int, tuple[float, list[list[int]]]] = {}
        self.kept: dict[tuple[int, ...], dict[int, Tensor]] = {}
        self.looped: dict[int, Tensor] = {}
        if self.mean_only or not self.sites:
            self.samples = 1
        elif (period := draws.period(self.sites, self.balanced)) is not None:
            self.samples = min(self.samples, period)
        if self.mean_only:
            self.used = "mean"
        elif not self.sites:
            self.used = "deterministic"
        elif self.estimator != "weight" or self.strategy == "loop" or self.samples == 1:
            self.used = "loop"

    def blocks(self, inputs: Any) -> Iterator[tuple[Any, Iterator[Tensor]]]:
        """Pieces of the inputs, each with an iterator over groups of outputs of shape (samples, data, ...)."""
        for block, groups in self.numbered(inputs):
            yield block, (outputs for _, outputs in groups)

    def numbered(self, inputs: Any) -> Iterator[tuple[Any, Iterator[tuple[list[int], Tensor]]]]:
        """`blocks` with the numbers of the samples of each group; samples with the same first draws come together."""
        if self.drawn_with != self.seed:  # an attack changes the seed in every step
            self.drawn_with = self.seed
            self.arranged.clear()
            self.kept.clear()
            self.looped.clear()
        if not self.used:
            self._choose(inputs)
        total, start = batches.size(inputs), 0
        while start < total:
            rows = max(self._rows(), self.least)
            stop = min(total, start + rows)
            if total - stop == 1 < rows:  # some models cannot run on a single datum
                stop = stop - 1 if rows > 2 else total
            block = batches.rows(inputs, start, stop)
            yield block, self._groups(block, self.done)
            self.done += stop - start
            start = stop

    def _rows(self) -> int:
        if self.used == "vmap":
            return max(1, (self.chunk or self.pairs) // self.together)
        return self.chunk or LOOP_ROWS

    def _choose(self, inputs: Any) -> None:
        """Count the arithmetic and choose between vmap and a loop, with a warning if vmap cannot run the model."""
        learning = self._forget_shapes()
        memory = {} if learning else known(self.model)  # sites that learn shapes must see an input each time
        looks = signature(inputs)
        try:
            if looks not in memory:
                memory[looks] = self._probed(inputs), self.least
            self.found, self.least = memory[looks]
        except Exception:  # an error of the model itself occurs again in the loop
            self.used = "loop"
            return
        found = self.found
        self.pairs = max(1, FOLDED // found.largest) if self._folds() else VMAP_PAIRS
        numbers = sum(map(draws.amount, self.sites))
        most = min(self.group or self.samples, self.chunk or self.pairs, VMAP_NOISE // max(numbers, 1))
        self.most, self.data = max(most, 1), batches.size(inputs)
        self.keeps_noise = not learning and self.samples * numbers <= draws.KEPT
        cost, together = self._arranged(self.begin)
        self.most = self.together = max(map(len, together))
        whole = len(together) == 1 and self._rows_with(self.together) == self.data
        if whole and self.together * self.data * found.largest <= FOLDED:
            cost -= self.together * found.narrow * (OWN_WEIGHTS - NARROW)
        alone = self._overhead() / min(self.data, self.chunk or LOOP_ROWS)
        if self.strategy == "auto" and not cost < sum(map(len, together)) * (1 + alone):
            self.used = "loop"
            return
        if (looks, "vmap") in memory:
            self.used = "vmap"
            return
        try:
            pair = {id(s): draws.noise(s, self.seed, i, (0, 1), self.balanced) for i, s in enumerate(self.sites)}
            before = self.own.states()
            self._vectorised(batches.rows(inputs, 0, self.least), pair, set())
            if self.own.drawn_since(before):
                raise PredictionError("it draws random numbers of its own, which belong to one sample")
            self.used = "vmap"
            memory[looks, "vmap"] = True
        except Exception as error:  # vmap raises errors of many classes
            self.used = "loop"
            if found.prefix > 0.1 or self.strategy == "vmap":
                reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
                warnings.warn(
                    f"the deterministic prefix ({found.prefix:.0%} of the work) runs again for every sample, because "
                    f"torch.func.vmap cannot vectorise this model: {reason}",
                    LeanBayesWarning,
                    stacklevel=4,
                )

    def _probed(self, inputs: Any) -> Probe:
        """The arithmetic of the model, counted on as few data as it runs on."""
        try:
            return probe(self.model, inputs, self.least)
        except Exception:
            if self.least > 1 or batches.size(inputs) < 2:
                raise
            self._forget_shapes()
            self.least = 2
            return probe(self.model, inputs, self.least)

    def _arranged(self, first: int) -> tuple[float, list[list[int]]]:
        """The cost in forward passes of samples from a first one on, and the groups that are computed together."""
        if first not in self.arranged:
            numbers = list(range(self.samples))[first : first + (self.group or self.samples)]
            known = {id(site): (i, site) for i, site in enumerate(self.sites)}
            ordered = [known[key] for key in self.found.sites if key in known]
            table = draws.in_common(ordered, self.seed, numbers, self.balanced)
            cost, rows = draws.arranged(self.found, table, self.most, self._rows_with, self._overhead())
            self.arranged[first] = cost, [[numbers[row] for row in some] for some in rows]
        return self.arranged[first]

    def _overhead(self) -> float:
        """The cost of a pass besides its data, in data."""
        return draws.OVERHEAD if self._folds() else self.found.calls

    def _folds(self) -> bool:
        return self.found.largest > 0 and any(site.folds for site in self.sites)

    def _rows_with(self, samples: int) -> int:
        return max(1, min(self.data, (self.chunk or self.pairs) // samples))

    def _groups(self, block: Any, start: int) -> Iterator[tuple[list[int], Tensor]]:
        if self.used == "mean":
            self.own.reseed(self.seed, 0)
            with sampling.using(mean_only=True):  # ends before the generator yields
                output = self._run(block)
            yield [0], output.unsqueeze(0)
            return
        if self._forget_shapes():  # noise of a run-time shape: let the sites see this block's
            with sampling.watching(lambda site: None):
                self._run(batches.rows(block, 0, self.least))
        done = 0
        if self.used == "deterministic":
            self.own.reseed(self.seed, 0)
            before = self.own.states()
            output = self._run(block)
            if self.own.drawn_since(before):
                self.used, self.samples = "loop", self.asked
            yield [0], output.unsqueeze(0)
            done = 1
        size = self.group or self.samples
        for first in range(self.begin, self.samples, size):
            numbers = list(range(max(first, done), min(first + size, self.samples)))
            if self.used == "vmap":
                for some in self._arranged(first)[1]:
                    yield some, self._vmap(block, some)
            else:
                yield from self._loop(block, start, numbers)

    def _loop(self, block: Any, start: int, numbers: list[int]) -> Iterator[tuple[list[int], Tensor]]:
        """A pass for every sample; small outputs of several samples are yielded together."""
        left = list(numbers)
        while left:
            outputs: list[Tensor] = []
            weights = Weights(partial(self._of_all, left))
            with fast_max_pooling(self.model), sampling.kept_scales(), sampling.prepared(weights.of_sample):
                while len(outputs) < len(left) and (not outputs or len(outputs) * outputs[0].numel() < GATHERED):
                    weights.at = len(outputs)
                    outputs.append(self._one(block, start, left[len(outputs)]))
            yield left[: len(outputs)], torch.stack(outputs)
            del left[: len(outputs)]

    def _forget_shapes(self) -> bool:
        """Clear the shapes that sites learn from inputs; returns whether there are such sites."""
        learners = [site for site in self.sites if site.learns_shape]
        for site in learners:
            site.shapes.clear()
        return bool(learners)

    def _run(self, block: Any) -> Tensor:
        return batches.output_tensor(batches.call(self.model, block))

    def _one(self, block: Any, start: int, sample: int) -> Tensor:
        """The output of one sample, by an ordinary pass."""
        if self.estimator == "weight":
            self.own.reseed(self.seed, sample)
            with sampling.using(estimator="weight", draws=self._noise(sample)):
                return self._run(block)
        torch.manual_seed(sampling.mix(self.seed, sample, start))
        laid_out = sampling.laid_out(self.model, self.seed, sample)
        with sampling.using(estimator=self.estimator, draws=laid_out):  # type: ignore[arg-type]
            return self._run(block)

    def _vmap(self, block: Any, numbers: list[int]) -> Tensor:
        """Several samples in one pass; everything before the first site in which they differ is computed once."""
        self.own.reseed(self.seed, numbers[0])
        stacked = self._stacked(numbers)
        same = {key for key, noise in stacked.items() if _is_same(noise)}
        if len(same) == len(stacked):  # one network
            with sampling.using(estimator="weight", draws={key: noise[0] for key, noise in stacked.items()}):
                out = self._run(block)
            return out.expand(len(numbers), *out.shape)
        try:
            return self._vectorised(block, stacked, set() if self.apart else same)
        except Exception:
            if self.apart or not same:
                raise
            self.apart = True  # a tensor that samples share cannot have theirs added in place
            return self._vectorised(block, stacked, set())

    def _vectorised(self, block: Any, stacked: dict[int, Tensor], same: set[int]) -> Tensor:
        """One pass for all samples, with sites that are the same in all not batched."""
        shared = {key: stacked[key][0] for key in same}
        weights = Weights(lambda site: stacked[id(site)] if self.keeps_noise else None)
        drawn = {id(site): weights.of_samples(site) for site in self.sites}

        def one(noise: dict[int, Tensor], values: dict[int, Tensor]) -> Tensor:
            with (
                sampling.using(estimator="weight", draws={**shared, **noise}),
                sampling.prepared(lambda site: values.get(id(site))),
            ):
                return self._run(block)

        own = {key: noise for key, noise in stacked.items() if key not in same}
        values = {key: value for key, value in drawn.items() if value is not None}
        with warnings.catch_warnings(), fast_max_pooling(self.model):
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented")
            return torch.func.vmap(one, randomness="different")(own, values)

    def _stacked(self, numbers: list[int]) -> dict[int, Tensor]:
        """The noise of samples by site, (samples, ...)."""
        key = tuple(numbers)
        if key in self.kept:
            return self.kept[key]
        draw = draws.kept_noise if self.keeps_noise else draws.noise
        found = {id(site): draw(site, self.seed, i, key, self.balanced) for i, site in enumerate(self.sites)}
        if self.keeps_noise:
            self.kept[key] = found
        return found

    def _noise(self, sample: int) -> Mapping[int, Tensor]:
        sites = {id(site): (i, site) for i, site in enumerate(self.sites)}
        return draws.Noise(sites, self.seed, sample, self.balanced, self._of_loop)

    def _of_all(self, numbers: list[int], site: sampling.Site) -> Tensor | None:
        """The noise of a site in these samples, if the network is small enough to draw it at once, else None."""
        known = self.numbers.get(id(site))
        if known is None or self.estimator != "weight" or self._of_loop(known, numbers[0]) is None:
            return None
        noise = self.looped[known]
        return noise if len(numbers) == len(noise) else noise[numbers]

    def _of_loop(self, number: int, sample: int) -> Tensor | None:
        """The noise of a site in one sample, drawn for all samples at once; None if that takes much memory."""
        if not self.keeps_noise or self.group is not None:
            return None
        if number not in self.looped:
            everything = tuple(range(self.samples))
            self.looped[number] = draws.kept_noise(self.sites[number], self.seed, number, everything, self.balanced)
        return self.looped[number][sample]


def _is_same(noise: Tensor) -> bool:
    """Whether all samples take the same components; False for other noise."""
    return noise.dtype == torch.long and bool((noise == noise[:1]).all())
