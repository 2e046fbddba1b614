"""The number of independent samples that have the same error as a number of balanced ones.

The prediction of very many samples is taken as exact. The error of S samples, balanced or not, is the mean squared
distance of their predictive mean, NLL or ECE from the exact one, over repeats with different seeds. The equivalent
number of independent samples is read off a line through (log S, log error) of independent samples; outside the range of
numbers that were tried it is a bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .metrics.calibration import ece as calibration_error

Measure = Callable[[Tensor], Tensor]
INDEPENDENT = (5, 10, 20, 40, 80, 160)
FLAT = -0.5


def measures(labels: Tensor) -> dict[str, Measure]:
    """Measures of probabilities (data, classes): themselves, their NLL, and their ECE without dropping bins."""

    def nll(probs: Tensor) -> Tensor:
        return -probs.gather(1, labels.unsqueeze(1)).clamp_min(1e-12).log().mean()

    def ece(probs: Tensor) -> Tensor:
        return torch.as_tensor(calibration_error(probs, labels, min_count=0))

    return {"predictive mean": lambda probs: probs, "NLL": nll, "ECE": ece}


def worth(
    predict: Callable[[int, int, bool], Tensor],
    exact: Tensor,
    measured: Mapping[str, Measure],
    *,
    samples: int = 20,
    repeats: int = 40,
    independent: tuple[int, ...] = INDEPENDENT,
) -> dict[str, dict[str, Any]]:
    """The number of independent samples with the same error as ``samples`` balanced ones, for every measure.

    predict(samples, seed, balanced): returns the predictive probabilities, (data, classes).
    exact: the predictive probabilities of very many samples.

    Returns for every measure: "worth", the number, or None if the errors of independent samples decrease too slowly (a
    slope above -1/2); "at_least", whether the number is only a lower bound, since even the most independent samples
    tried have a larger error; "error" by number of samples; the "slope" of the line, -1 in theory; "each" error.
    """
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in measured}
    for count, balanced in [(samples, True), *((s, False) for s in independent)]:
        key = "balanced" if balanced else str(count)
        for seed in range(repeats):
            probs = predict(count, 1 + seed, balanced)
            for name, measure in measured.items():
                error = (measure(probs) - measure(exact)).double().square().mean()
                errors[name].setdefault(key, []).append(float(error))
    found = {}
    for name, each in errors.items():
        mean = {key: sum(values) / len(values) for key, values in each.items()}
        counts = [math.log(s) for s in independent]
        logs = [_log(mean[str(s)]) for s in independent]
        slope, start = _line(counts, logs)
        equal, bound = _equal(_log(mean["balanced"]), logs, slope, start, independent)
        found[name] = {"worth": equal, "at_least": bound, "error": mean, "slope": slope, "each": each}
    return found


def _equal(
    log_error: float, logs: list[float], slope: float, start: float, tried: tuple[int, ...]
) -> tuple[float | None, bool]:
    """The number of independent samples with this error, and whether it is only a lower bound."""
    if log_error < min(logs):
        return float(tried[-1]), True
    if slope > FLAT:
        return None, False
    return min(max(math.exp((log_error - start) / slope), float(tried[0])), float(tried[-1])), False


def _log(error: float) -> float:
    return math.log(max(error, sys.float_info.min))


def _line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line."""
    mx, my = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
    return slope, my - slope * mx
