"""`tune_noise_`: choose the amount of noise in the weights of a trained model by the likelihood of held-out data."""

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
from ..layers.contract import BayesianLayer
from ..likelihoods import Likelihood, Regression, likelihood as as_likelihood
from . import data as feeds, rng
from .noise_trials import STATISTICS, STEP, Trials, Tuning, learns_noise, put_back, scaled
from .recalibrate import can_recalibrate, recalibrate_
from .validate import drawn, unread

SAMPLES = 8
SHARE = 0.05
"""The most variance that noise may add to the outputs of a regression before training, as a share of the squared
residuals."""
BATCHES, ROUNDS = 16, 3
"""Batches of held-out data that measure this variance, and how often it is measured."""


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

    Tries factors on the spread of all random parts of the model (2, 4, 8, 16 or 1/2 to 1/16), up or down while
    the NLL of ``val`` falls, and takes the factor nearest to 1 that is within one standard error of the best (of the
    paired differences), so that few data change little; a classifier takes none that costs more than 1 % of accuracy on
    ``val``. The spread is the sigma of Gaussian weights (the square root of
    alpha), the distance of the components of `Patch` and of the plain members of an `Ensemble` from their mean, and
    sqrt(rate / (1 - rate)) of dropout. Means stay the same. If a regression learns the noise of its targets, which
    training data alone make too low, that is tuned for every factor too, also for a plain network, to one standard
    error above the best, since few data may say too little.

    `fit` calls this at its end if it has held-out data. The result is in the parameters, the methods of layers and the
    stored task, so that `save` and `extract` keep it.

    val: inputs and targets that were not trained on, as in `fit`. Metrics on them are slightly too good afterwards.
    train: data for BatchNorm's statistics, which are collected anew for every factor; ``val`` by default.
    task: the meaning of the outputs; None for the task that the model was fitted for. samples: networks drawn for a
        prediction.

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
    given = known.likelihood if task is None else task
    if given is None:
        raise ConfigError("task: the model has not been fitted, so what its outputs mean is not known; pass task=...")
    likelihood = as_likelihood(given)
    val = accept(val, model, name="val")
    train = val if train is None else accept(train, model, name="train")
    feed = feeds.feed(val, batch_size=batch_size, seed=seed, training=False)
    if not tunable(model, likelihood):
        raise ConfigError(
            "model: expected noise to tune, received a network without: convert it with lb.bayesianize_ first; weights "
            "without a mean, as of Variance(parameterisation='zero'), and lb.DropConnect have none that could be scaled"
        )
    found = tuned_(model, likelihood, feed, train, forward=partial(batches.call, model), samples=samples, seed=seed)
    known.likelihood, known.conformal = likelihood.to_dict(), None
    return found


def scalable(model: nn.Module) -> bool:
    """Whether a model has noise that `scale_noise_` can change."""
    undo = scaled(model, 1.0)
    put_back(undo)
    return bool(undo)


def tunable(model: nn.Module, likelihood: Likelihood) -> bool:
    """Whether `tune_noise_` can change anything in a model."""
    return scalable(model) or learns_noise(likelihood)


def scale_noise_(model: nn.Module, factor: float) -> None:
    """Multiply the spread of all random parts of a model, in place; means stay the same.

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
    likelihood: Likelihood,
    val: feeds.Feed,
    train: Any,
    *,
    forward: Callable[[Any], Any],
    samples: int = SAMPLES,
    seed: int,
    recalibrate: bool = True,
    final: int = STATISTICS,
) -> Tuning:
    """`tune_noise_` without its checks; ``final`` is the number of data for the statistics at the end."""

    def collect(data: int) -> None:
        members = max([site.cycle() or 1 for site in sampling.sites(model).values()], default=1)  # each has its own
        if recalibrate and can_recalibrate(model):
            recalibrate_(model, train, data=-(-data // members), passes=members, seed=seed)

    tried = Trials(model, likelihood, partial(_passes, model, val, forward, samples, seed), collect)
    tried.at(1.0)
    if scalable(model):
        for step in (STEP, 1 / STEP):
            if tried.climb(step):
                break
    best = tried.best()
    if best.factor != 1.0:
        scale_noise_(model, best.factor)
        collect(final)
    if best.std is not None and isinstance(likelihood, Regression):
        likelihood.start_at(torch.tensor(best.std))
    return Tuning(best.factor, best.std, tuple(tried.found))


@dataclass
class Limits:
    """The factors that the noise of a model was multiplied by, and functions that undo it."""

    factors: list[float] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def apply_(self, model: nn.Module, *factors: float) -> Limits:
        """Multiply the noise of a model by factors."""
        for factor in factors:
            self.factors.append(factor)
            self.undo += scaled(model, factor)
        return self

    def at_(self, model: nn.Module, scales: dict[str, float]) -> Limits:
        """Bring the noise of each layer to a scale, 1 where none is named, whatever the scale that it has."""
        for name, layer in _layers(model):
            factor = scales.get(name, 1.0) / layer.noise_scale
            if factor != 1 and (undo := layer.scale_noise_(factor)) is not None:
                self.undo.append(undo)
        return self


def noise_scales(model: nn.Module) -> dict[str, float]:
    """The ``noise_scale`` of the layers of a model by name, where it is not 1."""
    return {name: layer.noise_scale for name, layer in _layers(model) if layer.noise_scale != 1}


def _layers(model: nn.Module) -> Iterator[tuple[str, BayesianLayer]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, BayesianLayer))


def limited_(model: nn.Module, likelihood: Likelihood, val: feeds.Feed, *, seed: int) -> Limits:
    """Halve the noise of a regression until it is small beside the residuals of ``val``.

    In training, noise that is large beside the residuals makes a trained network unlearn its means, which tuning
    afterwards cannot mend. A network that was not trained has large residuals, so nothing changes.
    """
    limits = Limits()
    if not isinstance(likelihood, Regression) or not scalable(model):
        return limits
    try:
        for _ in range(ROUNDS):
            spread, residual = _noise_and_residual(model, likelihood, val, seed)
            if not spread > SHARE * residual > 0:
                break
            limits.apply_(model, 0.5 ** max(1, math.ceil(0.5 * math.log2(spread / (SHARE * residual)))))
    except BaseException:
        put_back(limits.undo)
        raise
    return limits


def _noise_and_residual(model: nn.Module, likelihood: Regression, val: feeds.Feed, seed: int) -> tuple[float, float]:
    """The mean variance of the outputs over draws, and the mean squared error of their mean, on a few batches."""
    spread, residual, count = 0.0, 0.0, 0
    every = _passes(model, val, partial(batches.call, model), SAMPLES, seed)
    with torch.no_grad():
        for passes in itertools.islice(every, BATCHES):
            results = list(passes)
            outputs = [batches.output_tensor(result) for result, _ in results]
            each = torch.stack([likelihood.mean_and_noise(output)[0].double() for output in outputs])
            variance = each.var(0)
            error = (each.mean(0) - likelihood.align(outputs[0], batches.targets_of(*results[0]))).square()
            spread += float(variance.sum())
            residual += float((error - variance / len(each)).sum())  # without the variance of the mean of a few draws
            count += error.numel()
    return spread / max(count, 1), max(residual, 0.01 * spread) / max(count, 1)


def _passes(
    model: nn.Module, val: feeds.Feed, forward: Callable[[Any], Any], samples: int, seed: int
) -> Iterator[Iterator[tuple[Any, Any]]]:
    """The passes of `drawn` over held-out data, the same at every call."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with unread(val, device):
        rng.seed_all(sampling.mix(seed, 0))  # the user's loader may draw from any generator
        yield from drawn(model, val.epoch(0), forward, device, seed, samples)
