"""Is it right, and how much did it believe so: accuracy, NLL, Brier score, and the stream that carries them all."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import calibration, checks
from .streams import Bins, Mean, Points

FLOOR = torch.finfo(torch.float32).tiny
"""The probability below which NLL does not look: 1.2e-38, so that a true class given exactly 0 costs 87.3 nats."""


def accuracy(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The fraction of data whose most probable class is the true one (the first, on ties).

    probs: (N, C) or (N, C, *positions); targets: (N,) or (N, *positions).

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), "accuracy")
    return float(correct_each(p, y).mean())


def nll(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean negative log probability of the true class, in nats: -(1/N) sum_i log p_i[y_i].

    A probability below the smallest normal float32 counts as that (`FLOOR`): one exact zero costs 87.3 nats instead of
    making the mean infinite, and no probability that float32 can tell from zero is altered.

    >>> round(nll(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])), 4)
    0.3466
    """
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), "nll")
    return float(nll_each(p, y).mean())


def brier(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean squared distance of the probabilities from the truth: (1/N) sum_i sum_c (p_ic - [y_i = c])^2.

    Brier's own sum over classes, in [0, 2]; for two classes that is twice the one-sided form.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), "brier")
    return float(brier_each(p, y).mean())


# Per-datum forms, (N, C) and (N,) to (N,): inputs are checked already, so that a stream checks a batch only once.


def correct_each(p: Tensor, y: Tensor) -> Tensor:
    """1 where the most probable class is the true one."""
    return (p.argmax(1) == y).double()


def nll_each(p: Tensor, y: Tensor) -> Tensor:
    """-log of the probability of the true class, no smaller a probability than `FLOOR`."""
    return -p.gather(1, y[:, None]).squeeze(1).clamp(FLOOR, 1).log()


def brier_each(p: Tensor, y: Tensor) -> Tensor:
    """Squared distance from the one-hot truth, expanded so that no (N, C) copy is made: |p|^2 - 2 p_y + 1."""
    return (p.square().sum(1) - 2 * p.gather(1, y[:, None]).squeeze(1) + 1).clamp(min=0)


class Classification:
    """All classification metrics of a stream in O(bins) memory (adaptive binning adds two scalars a point).

    >>> stream = Classification(min_count=0)
    >>> stream.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    >>> {k: round(v, 3) for k, v in stream.compute().items()}
    {'accuracy': 0.5, 'nll': 0.511, 'brier': 0.37, 'confidence': 0.75, 'ece': 0.35, 'mce': 0.6}
    """

    def __init__(
        self, *, bins: int = 20, min_count: int = 6, adaptive: bool = False, ignore_index: int | None = None
    ) -> None:
        calibration.check_binning(bins, min_count)
        self.min_count, self.ignore_index = min_count, ignore_index
        self.count = self.data = self.zeros = 0
        self.mean, self.bins = Mean(), Bins(bins)
        self.points = Points() if adaptive else None

    def update(self, probs: Tensor, targets: Tensor) -> None:
        """Add a batch: probs (N, C) or (N, C, *positions), targets (N,) or (N, *positions)."""
        p, y = checks.classification(probs, targets, start=self.data, ignore_index=self.ignore_index)
        self.data += len(probs)
        self.count += len(y)
        confidence, correct, surprise = p.amax(1), correct_each(p, y), nll_each(p, y)
        self.zeros += int((surprise >= -math.log(FLOOR)).sum())
        self.mean.update(accuracy=correct, nll=surprise, brier=brier_each(p, y), confidence=confidence)
        self.bins.update(confidence, correct)
        if self.points is not None:
            self.points.update(confidence=confidence, correct=correct)

    def compute(self) -> dict[str, float]:
        """accuracy, nll, brier, mean confidence, and ece and mce (NaN where every bin is too small to count)."""
        checks.nonempty(self.count, "classification metrics")
        curve = self.reliability()
        return {**self.mean.compute(), "ece": curve.ece(), "mce": curve.mce()}

    def reliability(self) -> calibration.Reliability:
        """The reliability curve that ece and mce are read from."""
        if self.points is not None:
            points = self.points.compute()
            return calibration.equal_mass(
                points["confidence"], points["correct"], bins=len(self.bins.count), min_count=self.min_count
            )
        return calibration.from_bins(self.bins, self.min_count)

    def curves(self) -> dict[str, Any]:
        """What the report draws: the reliability curve and the histogram of confidence, right and wrong apart."""
        return {
            "reliability": self.reliability().to_dict(),
            "confidence": {
                "edges": self.bins.edges.tolist(),
                "right": [round(v) for v in self.bins.correct.tolist()],
                "wrong": [
                    round(n - v) for n, v in zip(self.bins.count.tolist(), self.bins.correct.tolist(), strict=True)
                ],
            },
        }

    def notes(self) -> list[str]:
        """What a reader should know about these numbers, in plain words."""
        notes = []
        if self.zeros:
            notes.append(
                f"{self.zeros} of {self.count} gave their true class a probability of zero; "
                f"each counts as {-math.log(FLOOR):.1f} nats of NLL."
            )
        if math.isnan(self.reliability().ece()):
            notes.append(
                f"ECE and MCE are undefined: no bin holds {self.min_count} data (bins=, min_count= to change it)."
            )
        return notes
