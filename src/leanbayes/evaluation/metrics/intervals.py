"""Confidence intervals of metrics, and of the difference of two models, from bootstrap replicates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...checks import number, refuse
from ...errors import EvaluationError


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models, and its confidence interval.

    value: first minus second. low, high: the interval. within_noise: the interval contains zero. paired: both models
    were evaluated on the same resampled data, so that the difficulty of the data cancels.
    """

    value: float
    low: float
    high: float
    within_noise: bool
    paired: bool


def percentile(
    replicates: Sequence[float], level: float = 0.95, *, value: float | None = None
) -> tuple[float, float] | None:
    """The central interval that holds a fraction ``level`` of the replicates (Efron 1979); NaN do not count.

    value: the metric on the data themselves. Resampling makes binned calibration errors greater (its noise adds to that
    of the data), so that their percentiles can lie above the measured value. If the mean of the replicates differs from
    the value by more than four standard errors, the interval is shifted by the difference.
    None if fewer than half of the replicates are defined.

    >>> percentile([0.0, 1.0, 2.0, 3.0, 4.0], level=0.5)
    (1.0, 3.0)
    >>> percentile([10.0, 11.0, 12.0, 13.0, 14.0], level=0.5, value=6.0)
    (5.0, 7.0)
    """
    level = number("level", level, above=0, below=1, error=EvaluationError, hint="try 0.95")
    try:
        values = np.asarray(replicates, dtype=np.float64)
    except Exception:  # of numpy, or of an iterable of the user's
        refuse("replicates", "several numbers", replicates, EvaluationError)
    if values.ndim != 1:
        refuse("replicates", "several numbers", replicates, EvaluationError)
    defined = values[np.isfinite(values)]
    if not len(defined) or 2 * len(defined) < len(values):
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    if value is not None:
        bias = float(defined.mean()) - value
        if abs(bias) > 4 * float(defined.std()) / math.sqrt(len(defined)):
            floor = 0.0 if defined.min() >= 0 else -math.inf  # errors are not negative
            low, high = max(low - bias, floor), high - bias
    return float(low), float(high)


def difference(
    value: float, first: Sequence[float], second: Sequence[float], *, paired: bool, level: float = 0.95
) -> Difference | None:
    """The difference of a metric and its interval from the replicates of both models; None if it is undefined.

    paired: replicate r of both comes from the same resampled data. Otherwise every replicate of one is compared with
    every replicate of the other.

    >>> difference(1.0, [2.0, 3.0, 4.0], [1.0, 2.0, 3.0], paired=True)
    Difference(value=1.0, low=1.0, high=1.0, within_noise=False, paired=True)
    >>> difference(1.0, [2.0, 3.0, 4.0], [1.0, 2.0, 3.0], paired=False).within_noise
    True
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    paired = paired and len(a) == len(b)
    if math.isnan(value):
        return None
    found = percentile((a - b if paired else np.subtract.outer(a, b).ravel()).tolist(), level, value=value)
    if found is None:
        return None
    return Difference(value, *found, within_noise=found[0] <= 0 <= found[1], paired=paired)
