"""State of metrics that are computed batch by batch: means, bins, a few scalars per point, bins per class.

Arrays of points x classes x samples are not kept beyond a batch. Sums are in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import EvaluationError
from .checks import nonempty


class Table(NamedTuple):
    """Sums by class and bin, each (C, bins): data, probability of the class, data whose truth the class is."""

    size: Tensor
    confidence: Tensor
    correct: Tensor


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


class ClassBins:
    """`Bins` for every class: equal-width bins of the probability of class c, and how often c was the truth in them.

    >>> bins = ClassBins(2)
    >>> bins.update(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    >>> bins.table().size.tolist(), bins.table().correct.tolist()
    ([[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]])
    """

    def __init__(self, bins: int) -> None:
        self.edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        self.bins = bins
        self.count = 0
        self.total = torch.zeros(0, dtype=torch.float64)  # of the probabilities of a class
        self.sums = torch.zeros(0, 3, bins, dtype=torch.float64)

    def update(self, p: Tensor, y: Tensor) -> None:
        """Add a batch of probabilities (N, C) and labels (N,)."""
        p, y = p.double().cpu(), y.cpu()
        if not self.count:
            self.total, self.sums = p.new_zeros(p.shape[1]), p.new_zeros(p.shape[1], 3, self.bins)
        self.count += len(p)
        self.total += p.sum(0)
        row, column = (p > self.edges[1]).nonzero(as_tuple=True)  # a row has few that are not in the first bin,
        self._add(0, column, p[row, column])  # which is the rest: `table`
        self._add(2, y, p.gather(1, y[:, None]).squeeze(1))

    def _add(self, kind: int, column: Tensor, values: Tensor) -> None:
        """Count in kind, and sum the values in the next kind; labels are only counted."""
        where = (torch.bucketize(values, self.edges, right=False) - 1).clamp(0, self.bins - 1)
        flat = (column * 3 + kind) * self.bins + where
        self.sums.view(-1).scatter_add_(0, flat, torch.ones_like(values))
        if kind == 0:
            self.sums.view(-1).scatter_add_(0, flat + self.bins, values)

    def table(self) -> Table:
        """The sums of every class and bin."""
        count, confidence, correct = self.sums.unbind(1)
        count, confidence = count.clone(), confidence.clone()
        count[:, 0] = self.count - count[:, 1:].sum(1)
        confidence[:, 0] = self.total - confidence[:, 1:].sum(1)
        return Table(count, confidence, correct)


class Points:
    """A few named scalars a point, for what needs an ordering of all points (ranks, quantiles), on the CPU.

    limit: the most points kept. Where there are more, a random half is dropped, and from then on every point is kept
    with half the chance: a fair sample, the same for the same number of points, so that two models keep the same ones.

    >>> points = Points()
    >>> points.update(score=torch.tensor([0.1, 0.9]))
    >>> points.update(score=torch.tensor([0.4]))
    >>> points.compute()["score"].shape
    torch.Size([3])
    """

    def __init__(self, limit: int | None = None) -> None:
        self.count = self.kept = 0
        self.limit, self.chance = limit, 1.0
        self.buffers: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(0)

    def update(self, **values: Tensor) -> None:
        """Add a batch; all values have the same length."""
        size = len(next(iter(values.values())))
        self.count += size
        chosen = self._drawn(size, self.chance)
        kept = self.kept + (size if chosen is None else int(chosen.sum()))
        for name, value in values.items():
            value = value.detach().cpu()
            buffer = self.buffers.get(name, value[:0])
            if len(buffer) < kept:  # doubled, since thousands of small tensors would fragment the memory
                buffer = torch.cat([buffer[: self.kept], value.new_empty(2 * kept - self.kept)])
                self.buffers[name] = buffer
            buffer[self.kept : kept] = value if chosen is None else value[chosen]
        self.kept = kept
        while self.limit is not None and self.kept > self.limit:
            self.chance /= 2
            chosen = self._drawn(self.kept, 0.5)
            self.buffers = {name: buffer[: self.kept][chosen] for name, buffer in self.buffers.items()}
            self.kept = len(next(iter(self.buffers.values())))

    def _drawn(self, size: int, chance: float) -> Tensor | None:
        return None if chance == 1 else torch.rand(size, generator=self._generator) < chance

    def compute(self) -> dict[str, Tensor]:
        """All points kept, in the order they came."""
        return {name: buffer[: self.kept].clone() for name, buffer in self.buffers.items()}
