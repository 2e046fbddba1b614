"""`tune_noise_`: how much noise the weights of a trained model should have, by the likelihood of held-out data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import batches, checks, sampling
from ..batches import accept
from ..convert import record
from ..errors import ConfigError
from ..likelihoods import Likelihood, Regression, likelihood as as_likelihood
from . import data as feeds, rng
from .noise_trials import STATISTICS, STEP, Trials, Tuning, learns_noise, put_back, scaled
from .recalibrate import can_recalibrate, recalibrate_
from .validate import drawn, unread

SAMPLES = 8
SHARE = 0.05
"""The variance that noise may add to the outputs of a regression before training, relative to the squared residuals."""
BATCHES, ROUNDS = 16, 3
"""How many batches of held-out data say what noise adds before training, and how often they are asked."""


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
    undo = scaled(model, 1.0)
    put_back(undo)
    return bool(undo)


def tunable(model: nn.Module, meant: Likelihood) -> bool:
    """Whether there is anything that `tune_noise_` could choose."""
    return scalable(model) or learns_noise(meant)


def scale_noise_(model: nn.Module, factor: float) -> None:
    """Multiply the spread of all that is random in a model, in place; means stay as they are.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField(std=0.02))
    >>> scale_noise_(model, 3.0)
    >>> round(model[0].posterior("weight").std.mean().item(), 3)
    0.06
    """
    scaled(model, checks.number("factor", factor, above=0))


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

    tried = Trials(model, meant, partial(_passes, model, val, forward, samples, seed), collect)
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


@dataclass
class Limits:
    """The factors that the noise of a model was multiplied by, one after another, and what puts it back."""

    factors: list[float] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def apply_(self, model: nn.Module, *factors: float) -> Limits:
        """Multiply the noise of a model by further factors."""
        for factor in factors:
            self.factors.append(factor)
            self.undo += scaled(model, factor)
        return self


def limited_(model: nn.Module, meant: Likelihood, val: feeds.Feed, *, seed: int) -> Limits:
    """Halve the noise of a regression until it is small beside the residuals of ``val``.

    Noise that is large beside the residuals of a trained network makes training undo what the network has learned: it
    then learns to be robust against noise, at the expense of its means, and nothing that is chosen afterwards mends
    those. Where a network has not been trained its residuals are large, and nothing changes.
    """
    limits = Limits()
    if not isinstance(meant, Regression) or not scalable(model):
        return limits
    try:
        for _ in range(ROUNDS):
            spread, residual = _noise_and_residual(model, meant, val, seed)
            if not spread > SHARE * residual > 0:
                break
            limits.apply_(model, 0.5 ** max(1, math.ceil(0.5 * math.log2(spread / (SHARE * residual)))))
    except BaseException:
        put_back(limits.undo)
        raise
    return limits


def _noise_and_residual(model: nn.Module, meant: Regression, val: feeds.Feed, seed: int) -> tuple[float, float]:
    """The mean variance of the outputs over draws, and the mean square of what their mean misses; of a few batches."""
    spread, residual, count = 0.0, 0.0, 0
    every = _passes(model, val, partial(batches.call, model), SAMPLES, seed)
    with torch.no_grad():
        for passes in itertools.islice(every, BATCHES):
            said = list(passes)
            outputs = [batches.output_tensor(result) for result, _ in said]
            each = torch.stack([meant.mean_and_noise(output)[0].double() for output in outputs])
            variance = each.var(0)
            error = (each.mean(0) - meant.align(outputs[0], batches.targets_of(*said[0]))).square()
            spread += float(variance.sum())
            residual += float((error - variance / len(each)).sum())  # less what the mean of a few draws still varies
            count += error.numel()
    return spread / max(count, 1), max(residual, 0.01 * spread) / max(count, 1)


def _passes(
    model: nn.Module, val: feeds.Feed, forward: Callable[[Any], Any], samples: int, seed: int
) -> Iterator[Iterator[tuple[Any, Any]]]:
    """What each of some networks says of every batch, which are the same at every call; see `drawn`."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with unread(val, device):
        rng.seed_all(sampling.mix(seed, 0))  # a loader of the user's may draw from any of them
        yield from drawn(model, val.epoch(0), forward, device, seed, samples)
