"""RMSE, MAE, log density, coverage and width, and the stream that computes all regression metrics batch by batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...checks import iterable_of, number, whole_number
from ...errors import EvaluationError
from . import checks
from .forecast import at_least_zero, histogram, interval_error, probability
from .streams import Mean, Points

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)


def rmse(mean: Tensor, targets: Tensor) -> float:
    """The root mean squared error over all data and outputs: sqrt(mean (m - y)^2).

    mean, targets: (N,) or (N, D).

    >>> rmse(torch.tensor([1.0, 3.0]), torch.tensor([[1.0], [1.0]])) == 2**0.5
    True
    """
    y, m = checks.regression(targets, mean=mean)
    checks.nonempty(len(y), "rmse")
    return math.sqrt(float((m - y).square().mean()))


def mae(mean: Tensor, targets: Tensor) -> float:
    """The mean absolute error over all data and outputs: mean |m - y|.

    mean, targets: (N,) or (N, D).

    >>> mae(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    1.0
    """
    y, m = checks.regression(targets, mean=mean)
    checks.nonempty(len(y), "mae")
    return float((m - y).abs().mean())


def coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> float:
    """The fraction of targets inside their interval, ends included: mean [l <= y <= u].

    An interval of nominal level q is calibrated if this is q. lower, upper, targets: (N,) or (N, D).

    >>> coverage(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 2.0]))
    0.5
    """
    y, low, high = _interval(targets, lower, upper)
    checks.nonempty(len(y), "coverage")
    return float(_inside(y, low, high).mean())


def interval_width(lower: Tensor, upper: Tensor) -> float:
    """The mean width of the intervals, in the units of the target: mean (u - l).

    Of two that cover alike, the narrower is better.

    >>> interval_width(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]))
    2.0
    """
    low, _, high = _interval(lower, lower, upper)
    checks.nonempty(len(low), "interval_width")
    return float((high - low).mean())


def log_density(log_probs: Tensor) -> float:
    """The mean log predictive density in nats: (1/N) sum_i log p(y_i | x_i), from `Predictive.log_prob(y)`.

    For a Bayesian network that is the log of the average density over the samples, not the average of the logs.
    log_probs: (N,).

    >>> log_density(torch.tensor([-1.0, -2.0]))
    -1.5
    """
    values = checks.finite(log_probs, "log_probs")
    checks.nonempty(values.numel(), "log_density")
    return float(values.mean())


def checked_levels(levels: Any) -> tuple[float, ...]:
    """The nominal levels of intervals, each between 0 and 1."""

    def level(name: str, value: Any) -> float:
        return number(name, value, above=0, below=1, error=EvaluationError)

    return tuple(iterable_of("levels", levels, "levels", level, error=EvaluationError, hint=f"for example {LEVELS}"))


class Regression:
    """All regression metrics of a stream; the means in O(levels) memory, and a few scalars a point for the bootstrap.

    >>> stream = Regression(levels=(0.9,))
    >>> stream.update(
    ...     torch.tensor([0.0, 1.0]),
    ...     mean=torch.tensor([0.0, 2.0]),
    ...     log_prob=torch.tensor([-1.0, -2.0]),
    ...     intervals={0.9: (torch.tensor([-1.0, 1.5]), torch.tensor([1.0, 2.5]))},
    ... )
    >>> {k: round(v, 3) for k, v in stream.compute().items()}
    {'rmse': 0.707, 'mae': 0.5, 'log_density': -1.5, 'coverage.0.9': 0.5, 'width.0.9': 1.5, 'interval_error': 0.4}
    """

    def __init__(self, *, levels: tuple[float, ...] = LEVELS, bins: int = 20) -> None:
        self.levels = checked_levels(levels)
        bins = whole_number("bins", bins, at_most=2**20, error=EvaluationError)
        self.mean, self.kept = Mean(), Points()
        self.pit = torch.zeros(bins, dtype=torch.long)

    @property
    def count(self) -> int:
        """The number of data seen."""
        return self.mean.count

    def update(
        self,
        targets: Tensor,
        *,
        mean: Tensor,
        log_prob: Tensor | None = None,
        intervals: dict[float, tuple[Tensor, Tensor]] | None = None,
        pit: Tensor | None = None,
        crps: Tensor | None = None,
        variance: Tensor | None = None,
    ) -> None:
        """Add a batch: targets and means (N,) or (N, D), log densities (N,), intervals by nominal level.

        pit, crps, variance: of every target, in their shape, from `Predictive`'s cdf, crps and variance. The PIT also
        gives the coverage of intervals that were not given: the central one of level q holds y where |F(y) - 1/2| <= q
        / 2.
        """
        start = self.count
        y, m = checks.regression(targets, start, mean=mean)
        values = {"squared": (m - y).square().mean(1), "absolute": (m - y).abs().mean(1)}
        if log_prob is not None:
            if log_prob.shape != (len(y),):
                raise EvaluationError(f"log_prob: expected shape ({len(y)},), received {tuple(log_prob.shape)}")
            values["log_density"] = checks.finite(log_prob, "log_prob", start).to(y.device)
        for level, (lower, upper) in (intervals or {}).items():
            y, low, high = _interval(targets, lower, upper, start)
            values[f"coverage.{level:g}"] = _inside(y, low, high).mean(1)
            values[f"width.{level:g}"] = (high - low).mean(1)
        for name, given in (("crps", crps), ("variance", variance)):
            if given is not None:
                values[name] = at_least_zero(checks.regression(targets, start, **{name: given})[1], name, start).mean(1)
        if pit is not None:
            u = probability(checks.regression(targets, start, pit=pit)[1], "pit", start)
            for level in self.levels:
                if f"coverage.{level:g}" not in values:
                    values[f"coverage.{level:g}"] = _inside(u, (1 - level) / 2, (1 + level) / 2).mean(1)
        self.mean.update(**values)
        if pit is not None:
            self.pit += histogram(u, len(self.pit))
        self.kept.update(**{k: v.float() for k, v in values.items() if not k.startswith("width.")})

    def compute(self) -> dict[str, float]:
        """rmse, mae; log_density, crps, sharpness, coverage.q, width.q, interval_error if their inputs were given."""
        checks.nonempty(self.count, "regression metrics")
        found = self.mean.compute()
        metrics = {"rmse": math.sqrt(found.pop("squared")), "mae": found.pop("absolute")}
        if (variance := found.pop("variance", None)) is not None:
            found["sharpness"] = math.sqrt(variance)
        if observed := {q: found[f"coverage.{q:g}"] for q in self.levels if f"coverage.{q:g}" in found}:
            found["interval_error"] = interval_error(observed)
        return {**metrics, **found}

    def points(self) -> dict[str, Tensor]:
        """Scalars for the bootstrap, (N,) float32 each: squared, absolute, log_density, crps, variance, coverage.q."""
        return self.kept.compute()

    def curves(self) -> dict[str, Any]:
        """Curves for the report: the observed coverage and the width at every nominal level, and the PIT histogram."""
        metrics = self.compute()
        levels = [level for level in self.levels if f"coverage.{level:g}" in metrics]
        curves: dict[str, Any] = {
            "coverage": {
                "nominal": levels,
                "observed": [metrics[f"coverage.{level:g}"] for level in levels],
                "width": [metrics.get(f"width.{level:g}") for level in levels],
            }
        }
        if int(self.pit.sum()):
            bins = len(self.pit)
            curves["pit"] = {"edges": [r / bins for r in range(bins + 1)], "count": self.pit.tolist()}
        return curves


def _interval(targets: Tensor, lower: Tensor, upper: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    y, low, high = checks.regression(targets, start, lower=lower, upper=upper)
    if bool((low > high).any()):
        row = int((low > high).any(1).nonzero()[0, 0])
        raise EvaluationError(
            f"lower[{start + row}]: expected at most upper[{start + row}], received an empty interval; swap the two?"
        )
    return y, low, high


def _inside(y: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    return ((low <= y) & (y <= high)).to(torch.float64)
