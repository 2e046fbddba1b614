"""The whole predictive distribution of a regression: CRPS, PIT histogram, sharpness, interval error."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ...checks import whole_number
from ...errors import EvaluationError
from ...prediction import mixture
from . import checks

MOST_BINS = 2**20


def crps(means: Tensor, variances: Tensor, targets: Tensor) -> float:
    """The mean continuous ranked probability score of mixtures of S Gaussians of equal weight.

    mean of E|Y - y| - E|Y - Y'| / 2, in the units of the target; of a point forecast it is the mean absolute error
    (Gneiting & Raftery 2007, eq. 21). means, variances: (S, N) or (S, N, D); targets: (N,) or (N, D). `Predictive.crps`
    has it of each datum.

    >>> round(crps(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([1.5, 4.0])), 6)
    1.25
    """
    if means.ndim < 2 or means.shape != variances.shape:
        raise EvaluationError(
            f"expected means and variances of one shape (S, N) or (S, N, D), "
            f"received {tuple(means.shape)} and {tuple(variances.shape)}"
        )
    y, first = checks.regression(targets, mean=means[0])
    checks.nonempty(len(y), "crps")
    m = checks.finite(means, "means").reshape(-1, *first.shape)
    v = at_least_zero(variances, "variances").reshape(m.shape)
    log_weights = torch.full(m.shape[:2], -math.log(len(m)), dtype=m.dtype, device=m.device)
    return float(mixture.crps((m, v, log_weights), y).mean())


def sharpness(variance: Tensor) -> float:
    """The root mean predictive variance, in the units of the target: of two calibrated models the sharper is better.

    variance: (N,) or (N, D), as `Predictive.variance`.

    >>> sharpness(torch.tensor([1.0, 7.0]))
    2.0
    """
    values = at_least_zero(variance, "variance")
    checks.nonempty(values.numel(), "sharpness")
    return math.sqrt(float(values.mean()))


def interval_error(observed: Mapping[float, float]) -> float:
    """How far intervals miss their nominal level q: the mean of |observed coverage - q| over the levels.

    observed: coverage by nominal level.

    >>> round(interval_error({0.5: 0.6, 0.9: 0.8}), 6)
    0.1
    """
    checks.nonempty(len(observed), "interval_error")
    return sum(abs(found - level) for level, found in observed.items()) / len(observed)


def pit_histogram(pit: Tensor, bins: int = 20) -> Tensor:
    """How often the probability integral transform F(y) falls in each of ``bins`` equal parts of [0, 1]: (bins,).

    Flat where the model is calibrated; a hump where it is underconfident, a bowl where it is overconfident, a slope
    where it is biased (Dawid 1984; Gneiting et al. 2007). Part r holds [r / bins, (r + 1) / bins), the last one 1 too.
    pit: (N,) or (N, D), as `Predictive.cdf`.

    >>> pit_histogram(torch.tensor([0.0, 0.1, 0.5, 1.0]), bins=2).tolist()
    [2, 2]
    """
    bins = whole_number("bins", bins, at_most=MOST_BINS, error=EvaluationError)
    return histogram(probability(pit, "pit"), bins)


# Shared with the stream, which knows the number of its first datum.


def histogram(u: Tensor, bins: int) -> Tensor:
    """Counts of checked values in equal parts of [0, 1], on the CPU."""
    return torch.bincount((u.flatten() * bins).long().clamp(0, bins - 1), minlength=bins).cpu()


def probability(values: Tensor, name: str, start: int = 0) -> Tensor:
    """The values in float64, if all lie in [0, 1]."""
    return _between(values, name, start, 1.0, "a probability in [0, 1]")


def at_least_zero(values: Tensor, name: str, start: int = 0) -> Tensor:
    """The values in float64, if none is negative."""
    return _between(values, name, start, math.inf, "0 or more")


def _between(values: Tensor, name: str, start: int, most: float, what: str) -> Tensor:
    values = checks.finite(values, name, start)
    bad = (values < 0) | (values > most)
    if bool(bad.any()):
        row, *rest = bad.nonzero()[0].tolist()
        received = float(values[row, *rest])
        index = ", ".join(map(str, [start + row, *(rest if values.shape[1:] != (1,) else ())]))  # (N, 1) is (N,)
        raise EvaluationError(f"{name}[{index}]: expected {what}, received {received:g}")
    return values
