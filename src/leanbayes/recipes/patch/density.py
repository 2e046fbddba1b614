"""How good a regression is in `patch-regression`: errors and log densities of mixtures of networks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import leanbayes as lb

from ..results import Metrics
from .splits import Split

TAU = 0.1
"""The precision of the noise, in the units of the target, as published."""


def quality(models: Sequence[nn.Module], split: Split, samples: int) -> Metrics:
    """RMSE and log densities of the test part, in the units of the target; several models are averaged."""
    outputs = outputs_of(models, split.x_test, samples)
    y, unit = split.y_test, split.scale
    error = float((outputs.mean(0) - y).square().mean().sqrt()) * unit
    rows = slice(0, 1000)
    own = best_precision(outputs_of(models, split.x[rows], min(samples, 100)), split.y[rows])
    return {
        "rmse": error,
        "lpd": log_density(outputs, y, TAU * unit**2) - math.log(unit),
        "lpd, own noise": log_density(outputs, y, own) - math.log(unit),
    }


def outputs_of(models: Sequence[nn.Module], x: Tensor, samples: int) -> Tensor:
    """The outputs of every sample of every model, (samples, rows, 1), in units of the standardised target."""
    drawn = [lb.predict(model, x, samples=samples, seed=0, task="regression").samples for model in models]
    return torch.cat(drawn)


def log_density(outputs: Tensor, y: Tensor, precision: float) -> float:
    """The mean over rows of log mean_s N(y; f_s, 1 / precision).

    >>> import torch
    >>> round(log_density(torch.zeros(7, 1, 1), torch.zeros(1, 1), 0.1), 3)
    -2.07
    """
    logs = ceiling(precision) - 0.5 * precision * (outputs.double() - y).square()
    return float((logs.logsumexp(0) - math.log(len(logs))).mean())


def best_precision(outputs: Tensor, y: Tensor, steps: int = 60) -> float:
    """The precision of a grid, of noise between 0.003 and 3 standard deviations of the target, that fits best."""
    grid = [10 ** (-1 + 6 * k / (steps - 1)) for k in range(steps)]
    return max(grid, key=lambda precision: log_density(outputs, y, precision))


def ceiling(tau: float) -> float:
    """The highest log density that a Gaussian of precision tau has.

    >>> round(ceiling(0.1), 3)
    -2.07
    """
    return 0.5 * math.log(tau / (2 * math.pi))


def standard_error(values: Sequence[float]) -> float:
    """Of the mean, from the spread of the values; 0 for a single one.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
