"""Selective prediction: accuracy among the most confident predictions, abstaining from the others."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ...checks import number
from ...errors import EvaluationError
from . import checks

NEVER = 2.0
"""The threshold where none gives the accuracy: no confidence reaches it."""


@dataclasses.dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve (El-Yaniv & Wiener 2010): one point for every distinct confidence, the highest first.

    Accepting the predictions with confidence >= threshold[k] accepts a fraction coverage[k] of all, of which a fraction
    risk[k] is wrong. Data of equal confidence are accepted together. All three (K,) in float64; count: of all data.
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor
    count: int

    def aurc(self) -> float:
        """The area under the curve: the mean, over all data, of the risk at the confidence of the datum.

        1/n sum_i risk(c_i) (Geifman et al. 2019, eq. 2); for data of equal confidence the risk is that of the lot.
        """
        return float((torch.diff(self.coverage, prepend=self.coverage.new_zeros(1)) * self.risk).sum())

    def eaurc(self) -> float:
        """AURC minus its minimum for the same number of errors (Geifman et al. 2019, section 4): 0 is perfect.

        The best ranks all errors last: 1/n sum_{j=1..e} j / (n - e + j), exact where the paper integrates.
        """
        return self.aurc() - best_aurc(self.count, round(float(self.risk[-1]) * self.count))

    def at_accuracy(self, accuracy: float) -> tuple[float, float]:
        """(threshold, coverage): the lowest threshold on the confidence that gives the accuracy, and its coverage.

        If no threshold does, (`NEVER`, 0.0): a threshold above 1, which no confidence reaches. The threshold is chosen
        on these data, so the accuracy on new data is a little lower.

        >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([1, 1, 0]))
        >>> curve.at_accuracy(1.0)[1] == 2 / 3, curve.at_accuracy(0.5)[1]
        (True, 1.0)
        """
        accuracy = number("accuracy", accuracy, above=0, at_most=1, error=EvaluationError, hint="try 0.99")
        enough = (self.risk <= 1 - accuracy + 1e-12).nonzero()  # 1 - 0.9 is a little less than 1 / 10
        if not len(enough):
            return NEVER, 0.0
        last = int(enough[-1])
        return float(self.threshold[last]), float(self.coverage[last])

    def to_dict(self, points: int = 200) -> dict[str, Any]:
        """Plain lists for the report, of at most ``points`` points, spread evenly over the coverage, ends included."""
        if len(self.risk) > points:
            wanted = torch.linspace(float(self.coverage[0]), 1, points, dtype=torch.float64)
            chosen = torch.searchsorted(self.coverage, wanted).clamp(max=len(self.risk) - 1).unique()
        else:
            chosen = torch.arange(len(self.risk))
        return {name: vars(self)[name][chosen].tolist() for name in ("coverage", "risk", "threshold")}


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The fraction of wrong predictions among the most confident ones, at every confidence.

    confidence: (N,) in [0, 1]; correct: (N,) of 0 and 1 (or booleans). Memory: a few scalars a point.

    >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.8, 0.5]), torch.tensor([1, 1, 0, 0]))
    >>> curve.coverage.tolist(), [round(r, 3) for r in curve.risk.tolist()]
    ([0.25, 0.75, 1.0], [0.0, 0.333, 0.5])
    >>> round(curve.aurc(), 4), round(curve.eaurc(), 4)
    (0.2917, 0.0833)
    """
    confidence, correct = check_answers(confidence, correct)
    ordered, order = confidence.sort(descending=True)
    last = ends(ordered)
    answered = last.double() + 1
    wrong = (1 - correct[order]).cumsum(0)[last]
    return RiskCoverage(answered / len(ordered), wrong / answered, ordered[last], len(ordered))


def check_answers(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Confidences in [0, 1] and 0 or 1 for wrong or right, (N,) each and in float64, on the CPU."""
    values = []
    for name, given in (("confidence", confidence), ("correct", correct)):
        value = checks.finite(given, name).cpu()
        if value.ndim != 1 or len(value) != len(confidence):
            raise EvaluationError(f"{name}: expected one number a datum, shape (N,), received {tuple(value.shape)}")
        values.append(value)
    sure, right = values
    checks.nonempty(len(sure), "confidence")
    for name, value, bad, what in (
        ("confidence", sure, (sure < -1e-4) | (sure > 1 + 1e-4), "a probability in [0, 1]"),
        ("correct", right, (right != 0) & (right != 1), "0 or 1"),
    ):
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            raise EvaluationError(f"{name}[{at}]: expected {what}, received {float(value[at]):g}")
    return sure, right


def ends(ordered: Tensor) -> Tensor:
    """Where each run of equal values ends.

    >>> ends(torch.tensor([3.0, 2.0, 2.0, 1.0])).tolist()
    [0, 2, 3]
    """
    differs = torch.ones(len(ordered), dtype=torch.bool)
    differs[:-1] = ordered[1:] != ordered[:-1]
    return differs.nonzero()[:, 0]


def best_aurc(count: float, wrong: float) -> float:
    """AURC where all errors come last, no two data equally confident: 1/n sum_{j=1..e} j / (n - e + j).

    With harmonic numbers, (e - (n - e) (H_n - H_{n-e})) / n.

    >>> round(best_aurc(4, 2), 6), round((1 / 3 + 2 / 4) / 4, 6)
    (0.208333, 0.208333)
    """
    right = count - wrong
    if right == 0:
        return 1.0
    harmonic = torch.special.digamma(torch.tensor([count + 1, right + 1], dtype=torch.float64))
    return (wrong - right * float(harmonic[0] - harmonic[1])) / count
