"""Bins of equal mass for every class: exact, or from a fine histogram per class if there are too many points."""

from __future__ import annotations

import torch
from torch import Tensor

from .calibration import equal_ranks
from .streams import Table

LIMIT = 2**24
"""Probabilities kept, as float32 (64 MB); points x classes beyond it go into histograms."""
CELLS = 2**21
"""Cells of all histograms together, 24 bytes each (48 MB), where there are many classes."""
OCTAVES = 32
WORK = 2**22
PIECE = 2**18  # probabilities put into cells at a time: what that needs on the way fits a cache


class Columns:
    """The state of a stream for bins of equal mass: all probabilities, or beyond `LIMIT` a histogram per class.

    The cells of a histogram halve in width with every factor of two towards 0 and towards 1, down to 2^-33, and each
    octave has 2^bits cells: 256 for few classes, 32 for a thousand, 4 at least. Sums in a cell are exact; only which
    of two neighbouring bins a cell falls into is decided for the cell as a whole.

    >>> columns = Columns()
    >>> columns.update(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    >>> columns.exact, columns.table(2).correct.tolist()
    (True, [[1.0, 1.0], [0.0, 0.0]])
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.count, self.classes, self.bits = limit, 0, 0, 0
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.cells: tuple[Tensor, Tensor, Tensor] | None = None  # counts, confidence, correct: (C x cells,) each

    @property
    def exact(self) -> bool:
        """Whether all probabilities are still kept."""
        return self.cells is None

    def update(self, p: Tensor, y: Tensor) -> None:
        """Add a batch of probabilities (N, C) and labels (N,)."""
        self.count, self.classes = self.count + len(p), p.shape[1]
        if self.exact and self.count * self.classes <= self.limit:
            self.kept.append((p.float().cpu().clone(), y.int().cpu().clone()))  # a view would hold its batch
            return
        if self.cells is None:
            self.bits = max(2, min(8, (CELLS // (2 * OCTAVES * self.classes)).bit_length() - 1))
            zeros = torch.zeros(self.classes * self.cells_per_class, dtype=torch.float64)
            self.cells = (zeros, zeros.clone(), zeros.clone())
            while self.kept:
                self._fill(*self.kept.pop())
        self._fill(p.cpu(), y.cpu())

    @property
    def cells_per_class(self) -> int:
        """How fine the histograms are."""
        return 2 * OCTAVES << self.bits

    def _fill(self, p: Tensor, y: Tensor) -> None:
        assert self.cells is not None
        count, confidence, correct = self.cells
        ahead = torch.arange(self.classes) * self.cells_per_class
        rows = max(1, PIECE // self.classes)
        for part, labels in zip(p.split(rows), y.long().split(rows), strict=True):
            where = cell(part, self.bits) + ahead
            flat = where.view(-1)
            count.scatter_add_(0, flat, count.new_ones(1).expand_as(flat))
            confidence.scatter_add_(0, flat, part.double().reshape(-1))
            truth = where.gather(1, labels[:, None]).squeeze(1)
            correct.scatter_add_(0, truth, correct.new_ones(1).expand_as(truth))

    def table(self, bins: int) -> Table:
        """The sums of every class over bins of equal mass of its probability; bins that ties left empty hold zeros."""
        if self.cells is not None:
            running = [part.view(self.classes, -1).cumsum(1) for part in self.cells]
            ranks = equal_ranks(self.count, bins).double().expand(self.classes, -1).contiguous()
            last = torch.searchsorted(running[0], ranks).clamp(max=self.cells_per_class - 1)
            return _between(running, last)
        labels = torch.cat([y for _, y in self.kept])
        step = max(1, WORK // max(self.count, 1))
        parts = []
        for first in range(0, self.classes, step):
            block = torch.cat([p[:, first : first + step] for p, _ in self.kept])
            parts.append(_sorted(block, labels, first, bins))
        return _joined(parts)


def equal_mass_table(p: Tensor, y: Tensor, bins: int) -> Table:
    """The sums of every class over bins of equal mass of its probability: p (N, C), y (N,), all at once.

    Equal probabilities share a bin, as in `calibration.equal_mass`.

    >>> equal_mass_table(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), 1).confidence
    tensor([[1.2000], [0.8000]], dtype=torch.float64)
    """
    step = max(1, WORK // max(len(p), 1))
    return _joined([_sorted(p[:, at : at + step], y, at, bins) for at in range(0, p.shape[1], step)])


def cell(p: Tensor, bits: int) -> Tensor:
    """The cell of each probability among 2 x OCTAVES x 2^bits: the leading bits of min(p, 1 - p), mirrored above 1/2.

    >>> cell(torch.tensor([0.0, 0.25, 0.3, 0.5, 0.75, 1.0]), 0)
    tensor([ 0, 31, 31, 31, 32, 63])
    """
    half = OCTAVES << bits
    smaller = torch.minimum(p, 1 - p).float()
    # A float32 is sign, 8 bits of exponent, 23 of mantissa: read as an integer it increases with its value.
    below = (smaller.view(torch.int32) >> (23 - bits)) - ((126 << bits) - half)
    below = below.clamp_(0, half - 1).long()
    return torch.where(p > 0.5, 2 * half - 1 - below, below)


def _sorted(p: Tensor, y: Tensor, first: int, bins: int) -> Table:
    """The table of the classes from ``first`` on, whose probabilities p (N, c) are."""
    values, order = p.t().contiguous().sort(1)
    truth = y[order] == torch.arange(first, first + len(values), device=y.device)[:, None]
    inner = values[:, equal_ranks(len(p), bins) - 1].contiguous()
    last = torch.searchsorted(values, inner, right=True) - 1  # equal values share a bin
    running = [torch.arange(1, len(p) + 1, dtype=torch.float64).expand(values.shape), values.double().cumsum(1)]
    return _between([*running, truth.double().cumsum(1)], last)


def _between(running: list[Tensor], last: Tensor) -> Table:
    """What running sums (C, cells) gain from the last cell of one bin to that of the next: (C, bins)."""
    ends = [part.gather(1, last) for part in running]
    return Table(*(torch.diff(end, dim=1, prepend=end.new_zeros(len(end), 1)) for end in ends))


def _joined(parts: list[Table]) -> Table:
    return Table(*(torch.cat(list(sums)) for sums in zip(*parts, strict=True)))
