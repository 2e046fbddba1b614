"""`tune_noise_`: how much noise the weights of a trained model should have, by the likelihood of held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches, checks, sampling
from ..batches import accept
from ..convert import record
from ..errors import ConfigError, DataError
from ..layers.contract import BayesianLayer
from ..likelihoods import Likelihood, Regression, likelihood as as_likelihood
from ..posteriors.base import Posterior
from ..report.table import as_text, table
from . import data as feeds
from .recalibrate import can_recalibrate, kept_statistics, recalibrate_
from .validate import drawn

SAMPLES = 8
STEP, MOST = 2.0, 4
"""Factors are tried by steps of this size, so many in each direction."""
MARGIN = 0.005
"""Differences of the NLL not worth a change: data that are all classified well prefer no noise by so little."""
STATISTICS = 2_000
"""How many data BatchNorm's statistics are collected from for each factor that is tried."""
_STDS = torch.logspace(-1, 1, 101, dtype=torch.float64)  # relative to the learned noise of a regression


@dataclass(frozen=True)
class Tried:
    """One amount of noise: a factor on what there was, and what the model said of the held-out data with it.

    std: the noise of the targets, of a regression that learns it, at its best for this factor; None otherwise.
    nll: the mean negative log-likelihood of a datum. gain: by how much it is below that of the model as it was, and
    error the standard error of that, datum by datum.
    """

    factor: float
    std: float | None
    nll: float
    gain: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """What `tune_noise_` chose, and all that it tried, the model as it was first. Printing it gives the table."""

    factor: float
    std: float | None
    tried: tuple[Tried, ...]

    @property
    def chosen(self) -> Tried:
        """What was chosen of what was tried."""
        return next(one for one in self.tried if (one.factor, one.std) == (self.factor, self.std))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    def summary(self) -> str:
        """One line for the progress of a training."""
        std = "" if self.std is None else f", noise of the targets {self.std:.4g}"
        return f"noise x {self.factor:g}{std}: val_nll {self.tried[0].nll:.4g} -> {self.chosen.nll:.4g}"

    def __str__(self) -> str:
        header = ["noise", "noise of targets", "val NLL", "better by", ""]
        rows = [
            [
                f"x {one.factor:g}",
                "-" if one.std is None else f"{one.std:.4g}",
                f"{one.nll:.4f}",
                f"{one.gain:+.4f} ± {one.error:.4f}",
                "chosen" if one is self.chosen else "",
            ]
            for one in self.tried
        ]
        return as_text(table(header, rows))


def tune_noise_(
    model: nn.Module,
    val: Any,
    *,
    train: Any = None,
    task: Any = None,
    samples: int = SAMPLES,
    batch_size: int = 128,
    seed: int = 0,
) -> Tuning:
    """Choose how much noise a trained model has, in place, by the likelihood of held-out data.

    Tries factors on the spread of all that is random in the model, 2, 4, 8 and 16 or 1/2 to 1/16, upwards or downwards
    while the NLL of ``val`` falls, and takes the one nearest to 1 that is within one standard error of the best (of the
    difference, datum by datum), so that few data do not change much. The spread is the sigma of
    Gaussian weights (the square root of alpha), the distance of the components of `Patch` and of the plain members of
    an `Ensemble` from their mean, and sqrt(rate / (1 - rate)) of dropout. Means stay as they are, and a weight without
    a mean its variance. Where a regression learns its noise of targets, which training data alone make too low, that is
    tuned for every factor too, and of a plain network as well.

    `fit` does this when it ends, if it has held-out data. What is chosen is in parameters, in the methods of layers and
    in the task that the model remembers, so that `save` and `extract` keep it.

    val: inputs and targets that training has not seen, as in `fit`. What the model then says of them is a little too
        good: test on others.
    train: data for BatchNorm's statistics, which are collected anew for every factor; ``val`` if none are given.
    task: what the outputs mean; None for what the model remembers. samples: networks drawn for a prediction.

    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(400, 2)
    >>> y = (x.sum(1) + torch.randn(400) > 0).long()
    >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField(scale=2.0))
    >>> found = lb.tune_noise_(model, (x, y), task="classification")
    >>> found.factor < 1, len(found.tried) > 2
    (True, True)
    """
    checks.module("model", model)
    samples, seed = checks.samples(samples), checks.seed(seed)
    batch_size = checks.whole_number("batch_size", batch_size)
    known = record.ensure(model)
    meaning = known.likelihood if task is None else task
    if meaning is None:
        raise ConfigError("task: the model has not been fitted, so what its outputs mean is not known; pass task=...")
    meant = as_likelihood(meaning)
    val = accept(val, model, name="val")
    train = val if train is None else accept(train, model, name="train")
    feed = feeds.feed(val, batch_size=batch_size, seed=seed, training=False)
    if not tunable(model, meant):
        raise ConfigError(
            "model: expected noise to tune, received a network without: convert it with lb.bayesianize_ first; weights "
            "without a mean, as of Variance(parameterisation='zero'), and lb.DropConnect have none that could be scaled"
        )
    found = tuned_(model, meant, feed, train, forward=partial(batches.call, model), samples=samples, seed=seed)
    known.likelihood, known.conformal = meant.to_dict(), None
    return found


def scalable(model: nn.Module) -> bool:
    """Whether a model has noise that `scale_noise_` can multiply."""
    undo = _scaled(model, 1.0)
    _put_back(undo)
    return bool(undo)


def tunable(model: nn.Module, meant: Likelihood) -> bool:
    """Whether there is anything that `tune_noise_` could choose."""
    return scalable(model) or learns_noise(meant)


def learns_noise(meant: Likelihood) -> bool:
    """Whether a likelihood has noise of the targets that is learned, one number."""
    return isinstance(meant, Regression) and meant.noise == "learned"


def scale_noise_(model: nn.Module, factor: float) -> None:
    """Multiply the spread of all that is random in a model, in place; means stay as they are.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField(std=0.02))
    >>> scale_noise_(model, 3.0)
    >>> round(model[0].posterior("weight").std.mean().item(), 3)
    0.06
    """
    _scaled(model, checks.number("factor", factor, above=0))


def tuned_(
    model: nn.Module,
    meant: Likelihood,
    val: feeds.Feed,
    train: Any,
    *,
    forward: Callable[[Any], Any],
    samples: int = SAMPLES,
    seed: int,
    recalibrate: bool = True,
    final: int = STATISTICS,
) -> Tuning:
    """`tune_noise_` behind its checks; ``final`` is how many data the statistics are collected from at the end."""

    def collect(data: int) -> None:
        members = max([site.cycle() or 1 for site in sampling.sites(model).values()], default=1)  # each has statistics
        if recalibrate and can_recalibrate(model):
            recalibrate_(model, train, data=-(-data // members), passes=members, seed=seed)

    tried = _Trials(model, meant, partial(_passes, model, val, forward, samples, seed), collect)
    tried.at(1.0)
    if scalable(model):
        for step in (STEP, 1 / STEP):
            if tried.climb(step):
                break
    best = tried.best()
    if best.factor != 1.0:
        scale_noise_(model, best.factor)
        collect(final)
    if best.std is not None and isinstance(meant, Regression):
        meant.start_at(torch.tensor(best.std))
    return Tuning(best.factor, best.std, tuple(tried.found))


class _Trials:
    """What was tried so far, the model as it was first; each leaves the model as it was."""

    def __init__(
        self,
        model: nn.Module,
        meant: Likelihood,
        passes: Callable[[], Iterator[Iterator[tuple[Any, Any]]]],
        collect: Callable[[int], None],
    ) -> None:
        self.model, self.meant, self.passes, self.collect = model, meant, passes, collect
        self.found: list[Tried] = []
        self.values: list[Tensor] = []

    def best(self) -> Tried:
        """The factor nearest to what there was that is within one standard error, or `MARGIN`, of the best.

        What there was is one of them, so that it stays unless another is better beyond noise. The noise of targets is
        always that of the held-out data: the one from data that the network was fitted to is known to be too low.
        """
        best = min(range(self.present, len(self.found)), key=lambda i: self.found[i].nll)
        way = [i for i in range(self.present, len(self.found)) if self._is_on_the_way(i, best)]
        for i in sorted(way, key=lambda i: abs(math.log(self.found[i].factor))):
            loss, error = _paired(self.values[best], self.values[i])
            if loss <= max(error, MARGIN):
                return self.found[i]
        return self.found[best]

    def _is_on_the_way(self, i: int, to: int) -> bool:
        """Whether a factor lies between 1 and another."""
        at, end = (math.log(self.found[number].factor) for number in (i, to))
        return at * end >= 0 and abs(at) <= abs(end)

    @property
    def present(self) -> int:
        """Which of what was tried has the factor that there was, with the noise of targets at its best."""
        return max(i for i, one in enumerate(self.found) if one.factor == 1.0)

    def climb(self, step: float) -> bool:
        """Go on by a step while that is better than the one before; whether the first was."""
        before = self.found[self.present]
        for power in range(1, MOST + 1):
            now = self.at(step**power)
            if now.nll >= before.nll:
                return power > 1
            before = now
        return True

    def at(self, factor: float) -> Tried:
        """Try one factor, the noise of the targets at its best, and remember it."""
        undo = [] if factor == 1.0 else _scaled(self.model, factor)
        try:
            with kept_statistics(self.model):
                if undo:
                    self.collect(STATISTICS)
                outputs = self._log_probs()
        finally:
            _put_back(undo)
        now = self.meant.std if isinstance(self.meant, Regression) and learns_noise(self.meant) else None
        if now is None or not self.found:
            self._add(factor, now, outputs(None))
        if now is not None:
            by_std = {std: outputs(std) for std in (now * _STDS).tolist()}
            std = max(by_std, key=lambda std: float(by_std[std].mean()))
            self._add(factor, std, by_std[std])
        return self.found[-1]

    def _add(self, factor: float, std: float | None, values: Tensor) -> None:
        self.values.append(values)
        self.found.append(Tried(factor, std, -float(values.mean()), *_paired(values, self.values[0])))

    def _log_probs(self) -> Callable[[float | None], Tensor]:
        """The log-likelihood of every datum, as a function of the noise of the targets (None: as the task has it)."""
        kept: list[tuple[list[Tensor], Tensor]] = []
        values = []
        for passes in self.passes():
            each, outputs, latent = [], [], False
            for result, targets in passes:
                output, aim = batches.output_tensor(result), batches.targets_of(result, targets)
                latent = isinstance(result, batches.LatentOutput)
                each.append(self.meant.log_prob(output, aim).double().cpu())
                outputs.append(output)
            values.append(torch.stack(each).mean(0) if latent else _mixed(each))
            if learns_noise(self.meant):
                kept.append((outputs, aim))
        if not values:
            raise DataError("val: expected at least one batch, received none")
        as_is = torch.cat(values)

        def at(std: float | None) -> Tensor:
            if std is None:
                return as_is
            noise = Regression(std=std)
            with torch.no_grad():
                parts = [_mixed([noise.log_prob(output, aim).double().cpu() for output in all_]) for all_, aim in kept]
            return torch.cat(parts)

        return at


def _passes(
    model: nn.Module, val: feeds.Feed, forward: Callable[[Any], Any], samples: int, seed: int
) -> Iterator[Iterator[tuple[Any, Any]]]:
    """What each of some networks says of every batch; see `drawn`."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return drawn(model, val.epoch(0), forward, device, seed, samples)


def _paired(values: Tensor, others: Tensor) -> tuple[float, float]:
    """The mean of the differences, and its standard error; nothing can be said of a single datum."""
    gain = values - others
    return float(gain.mean()), float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else math.inf


def _mixed(log_probs: list[Tensor]) -> Tensor:
    """log of the mean over samples of p."""
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def _parts(model: nn.Module) -> Iterator[Posterior | BayesianLayer]:
    return (module for module in model.modules() if isinstance(module, (Posterior, BayesianLayer)))


def _scaled(model: nn.Module, factor: float) -> list[Callable[[], None]]:
    """Multiply the spread of all that is random; returns what puts it back."""
    return [undo for part in _parts(model) if (undo := part.scale_noise_(factor)) is not None]


def _put_back(undo: list[Callable[[], None]]) -> None:
    for put_back in reversed(undo):
        put_back()
