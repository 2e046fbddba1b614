"""Calibration: the reliability curve, expected and maximum calibration error."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from ...checks import whole_number
from ...errors import EvaluationError
from . import checks
from .streams import Bins


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Accuracy against confidence in bins; `ece` and `mce` are read from it.

    Bin r holds the data whose confidence lies in (edges[r], edges[r+1]]; where it is empty, its two means are NaN.
    A bin counts if it holds at least ``min_count`` data.
    """

    edges: tuple[float, ...]
    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    min_count: int

    def gaps(self) -> list[tuple[int, float]]:
        """(count, |accuracy - confidence|) of every bin that counts."""
        bins = zip(self.count, self.accuracy, self.confidence, strict=True)
        return [(n, abs(a - c)) for n, a, c in bins if n >= max(self.min_count, 1)]

    def ece(self) -> float:
        """sum_r |B_r| / n |accuracy(B_r) - confidence(B_r)| over the bins that count, n being all data; NaN if none."""
        gaps, total = self.gaps(), sum(self.count)
        return sum(n * gap for n, gap in gaps) / total if gaps else math.nan

    def mce(self) -> float:
        """max_r |accuracy(B_r) - confidence(B_r)| over the bins that count; NaN if none."""
        return max((gap for _, gap in self.gaps()), default=math.nan)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists; None for the means of an empty bin."""
        plain = {f.name: vars(self)[f.name] for f in dataclasses.fields(self)}
        return {k: [_none(v) for v in value] if isinstance(value, tuple) else value for k, value in plain.items()}


def reliability(
    probs: Tensor,
    targets: Tensor,
    *,
    bins: int = 20,
    min_count: int = 6,
    adaptive: bool = False,
    ignore_index: int | None = None,
) -> Reliability:
    """The reliability curve: accuracy(B_r) and confidence(B_r) of the data whose top probability falls in bin r.

    accuracy(B) = 1/|B| sum_{i in B} [argmax p_i = y_i], confidence(B) = 1/|B| sum_{i in B} max p_i
    (Ensemble Model Patching, appendix D.2, after Guo et al. 2017, eq. 1 and 2).
    probs: (N, C) or (N, C, *positions); targets: (N,) or (N, *positions).
    bins, min_count: 20 bins of which those with 5 data or fewer are dropped is that paper's choice; bins=15,
    min_count=0 is Guo's. adaptive: bins of equal mass instead of equal width.

    >>> curve = reliability(torch.tensor([[0.9, 0.1]] * 10), torch.tensor([0] * 8 + [1] * 2))
    >>> curve.count[17], round(curve.accuracy[17], 3), round(curve.confidence[17], 3)
    (10, 0.8, 0.9)
    """
    check_binning(bins, min_count)
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), "reliability")
    confidence, correct = p.amax(1), (p.argmax(1) == y).double()
    if adaptive:
        return equal_mass(confidence, correct, bins=bins, min_count=min_count)
    state = Bins(bins)
    state.update(confidence, correct)
    return from_bins(state, min_count)


def ece(probs: Tensor, targets: Tensor, **binning: Any) -> float:
    """The expected calibration error: sum_r |B_r| / n |accuracy(B_r) - confidence(B_r)|.

    Ensemble Model Patching, appendix D.2 (n counts all data, also those of dropped bins); arguments of `reliability`.

    >>> round(ece(torch.tensor([[0.9, 0.1]] * 10), torch.tensor([0] * 8 + [1] * 2)), 6)
    0.1
    >>> ece(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    Traceback (most recent call last):
    leanbayes.errors.EvaluationError: ece: expected at least one bin with 6 data or more, the fullest has 1; ...
    """
    return _defined(reliability(probs, targets, **binning), "ece")


def mce(probs: Tensor, targets: Tensor, **binning: Any) -> float:
    """The maximum calibration error: max_r |accuracy(B_r) - confidence(B_r)|.

    Ensemble Model Patching, appendix D.2; arguments of `reliability`.

    >>> round(mce(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), min_count=0), 6)
    0.6
    """
    return _defined(reliability(probs, targets, **binning), "mce")


def adaptive_ece(probs: Tensor, targets: Tensor, *, bins: int = 20, ignore_index: int | None = None) -> float:
    """The expected calibration error of the top label over bins of equal mass, all of which count.

    sum_r |B_r| / n |accuracy(B_r) - confidence(B_r)|, B_r holding n / bins data each, as `equal_mass` cuts them
    (Nguyen & O'Connor 2015).

    >>> round(adaptive_ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]), bins=2), 6)
    0.35
    """
    return reliability(probs, targets, bins=bins, min_count=0, adaptive=True, ignore_index=ignore_index).ece()


def from_bins(state: Bins, min_count: int) -> Reliability:
    """The reliability curve of a stream of equal-width bins."""
    count = state.count.double()  # 0/0 is the NaN that an empty bin should have
    return Reliability(
        edges=tuple(state.edges.tolist()),
        count=tuple(state.count.tolist()),
        confidence=tuple((state.confidence / count).tolist()),
        accuracy=tuple((state.correct / count).tolist()),
        min_count=min_count,
    )


def equal_mass(confidence: Tensor, correct: Tensor, *, bins: int, min_count: int) -> Reliability:
    """The curve over bins that hold about as many data each (Nguyen & O'Connor 2015): edges are quantiles.

    Sizes differ by one at most, the larger first (numpy.array_split), except that equal confidences share a bin, the
    lower one, so that the result does not depend on the order of the data; with many ties there are fewer bins than
    ``bins``. confidence, correct: (N,).

    >>> curve = equal_mass(torch.tensor([0.6, 0.7, 0.8, 0.8]), torch.ones(4), bins=2, min_count=0)
    >>> curve.count
    (2, 2)
    """
    confidence, correct = confidence.double().cpu(), correct.double().cpu()
    upper = confidence.sort().values[equal_ranks(len(confidence), bins) - 1].unique()
    where = torch.bucketize(confidence, upper, right=False)
    count = torch.bincount(where, minlength=len(upper))
    return Reliability(
        edges=(0.0, *upper.tolist()),
        count=tuple(count.tolist()),
        confidence=tuple((torch.bincount(where, confidence, minlength=len(upper)) / count).tolist()),
        accuracy=tuple((torch.bincount(where, correct, minlength=len(upper)) / count).tolist()),
        min_count=min_count,
    )


def equal_ranks(count: int, bins: int) -> Tensor:
    """How many of ``count`` ordered data lie in the first r of so many bins of equal mass: (bins,), no more than count.

    >>> equal_ranks(11, 4), equal_ranks(2, 4)
    (tensor([ 3,  6,  9, 11]), tensor([1, 2]))
    """
    bins = min(bins, count)
    step, larger = divmod(count, bins)
    ends = torch.arange(1, bins + 1)
    return ends * step + ends.clamp(max=larger)


def check_binning(bins: int, min_count: int) -> None:
    """Refuse an invalid number of bins or min_count."""
    whole_number("bins", bins, at_most=2**20, error=EvaluationError)
    whole_number("min_count", min_count, at_least=0, error=EvaluationError)


def _defined(curve: Reliability, name: str) -> float:
    value = curve.ece() if name == "ece" else curve.mce()
    if math.isnan(value):
        raise EvaluationError(
            f"{name}: expected at least one bin with {curve.min_count} data or more, the fullest has "
            f"{max(curve.count)}; give more data or min_count=0"
        )
    return value


def _none(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value
