"""How many independent samples have the error of a number of balanced ones.

The answer of very many samples stands for the exact one. Of S samples, balanced or not, the error is the mean squared
distance of what they say to that answer (the predictive mean), or that of their NLL or ECE to its own, over repeats
with seeds of their own. Balanced samples are worth as many independent ones as have the same error, read off a line
through (log S, log error) of independent samples, within the numbers that were tried: beyond them it is a bound.
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
    """How many independent samples so many balanced ones are worth, for every measure.

    predict(samples, seed, balanced): the predictive probabilities of so many samples, (data, classes).
    exact: those of very many samples.

    Of every measure: "worth", the number, None where errors of independent samples fall too slowly for one to be read
    off (a slope above -1/2); "at_least", whether not even the most independent samples tried have so small
    an error, so that it is only a bound; "error" by number of samples; the "slope" of the line, -1 where errors fall as
    they should; "each" error.
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
    """How many independent samples have this error, and whether there were none with so small a one."""
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
