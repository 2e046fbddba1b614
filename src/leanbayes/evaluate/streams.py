"""The three shapes of state a metric needs when data come in batches: means, bins, and a few scalars a point.

Each takes per-datum tensors (N,), so that points x classes x samples never outlives a batch. Sums are kept in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import EvaluationError
from .checks import nonempty


class Mean:
    """Running means of named per-datum values: one float each, whatever the number of data.

    >>> mean = Mean()
    >>> mean.update(loss=torch.tensor([1.0, 2.0]))
    >>> mean.update(loss=torch.tensor([6.0]))
    >>> mean.compute()
    {'loss': 3.0}
    """

    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, float] = {}

    def update(self, **values: Tensor) -> None:
        """Add a batch; all values have the same length, and every batch the same names."""
        if self.sums and self.sums.keys() != values.keys():
            raise EvaluationError(f"expected {', '.join(self.sums)} in every batch, received {', '.join(values)}")
        self.count += len(next(iter(values.values())))
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value.double().sum())

    def compute(self) -> dict[str, float]:
        """The mean of each."""
        nonempty(self.count, "mean")
        return {name: total / self.count for name, total in self.sums.items()}


class Bins:
    """Counts and sums in equal-width bins of [0, 1]: bin r of R holds the confidences in ((r-1)/R, r/R].

    >>> bins = Bins(4)
    >>> bins.update(torch.tensor([0.25, 0.6, 0.7]), torch.tensor([1.0, 1.0, 0.0]))
    >>> bins.count.tolist(), bins.correct.tolist()
    ([1, 0, 2, 0], [1.0, 0.0, 1.0, 0.0])
    """

    def __init__(self, bins: int) -> None:
        self.edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        self.count = torch.zeros(bins, dtype=torch.long)
        self.confidence = torch.zeros(bins, dtype=torch.float64)
        self.correct = torch.zeros(bins, dtype=torch.float64)

    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Add a batch of confidences in [0, 1] and whether each was right (0 or 1), both (N,)."""
        confidence, correct = confidence.double().cpu(), correct.double().cpu()
        bins = len(self.count)
        where = (torch.bucketize(confidence, self.edges, right=False) - 1).clamp(0, bins - 1)
        self.count += torch.bincount(where, minlength=bins)
        self.confidence += torch.bincount(where, confidence, minlength=bins)
        self.correct += torch.bincount(where, correct, minlength=bins)


class Points:
    """A few named scalars a point, for what needs an ordering of all points (ranks, quantiles), on the CPU.

    >>> points = Points()
    >>> points.update(score=torch.tensor([0.1, 0.9]))
    >>> points.update(score=torch.tensor([0.4]))
    >>> points.compute()["score"].shape
    torch.Size([3])
    """

    def __init__(self) -> None:
        self.count = 0
        self.parts: dict[str, list[Tensor]] = {}

    def update(self, **values: Tensor) -> None:
        """Add a batch; all values have the same length."""
        self.count += len(next(iter(values.values())))
        for name, value in values.items():
            self.parts.setdefault(name, []).append(value.detach().cpu().clone())  # a view would hold its batch

    def compute(self) -> dict[str, Tensor]:
        """Everything seen, in the order it came."""
        return {name: torch.cat(parts) for name, parts in self.parts.items()}
