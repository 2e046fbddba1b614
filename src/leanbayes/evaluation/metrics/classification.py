"""Accuracy and NLL, and the stream that computes all classification metrics batch by batch."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ...errors import EvaluationError
from . import calibration, checks, classwise, human
from .brier import brier, brier_each, decompose
from .checks import FLOOR
from .columns import LIMIT, Columns
from .streams import Bins, ClassBins, Mean, Points

__all__ = ["FLOOR", "Classification", "accuracy", "brier", "brier_each", "correct_each", "nll", "nll_each"]

POINTS = 2**24
"""The most points whose scalars are kept (256 MB); only the pixels of many images are more."""


def accuracy(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The fraction of data whose most probable class is the true one (the first, on ties).

    probs: (N, C) or (N, C, *positions); targets: (N,) or (N, *positions).

    >>> import torch
    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return checks.mean_of("accuracy", correct_each, probs, targets, ignore_index)


def nll(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean negative log probability of the true class, in nats: -(1/N) sum_i log p_i[y_i].

    A probability below the smallest normal float32 counts as that (`FLOOR`): one exact zero costs 87.3 nats instead of
    making the mean infinite, and no probability that float32 can tell from zero is altered.

    >>> import torch
    >>> round(nll(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])), 4)
    0.3466
    """
    return checks.mean_of("nll", nll_each, probs, targets, ignore_index)


# Per-datum forms, (N, C) and (N,) to (N,): inputs are checked already, so that a stream checks a batch only once.


def correct_each(p: Tensor, y: Tensor) -> Tensor:
    """1 where the most probable class is the true one."""
    return (p.argmax(1) == y).double()


def nll_each(p: Tensor, y: Tensor) -> Tensor:
    """-log of the probability of the true class, no smaller a probability than `FLOOR`."""
    return -p.gather(1, y[:, None]).squeeze(1).clamp(FLOOR, 1).log()


class Classification:
    """All classification metrics of a stream, in memory for a few scalars a point, never for points x classes.

    It keeps means; bins of the top label and of every class; four float32 a point (`points`), of at most 2^24 points;
    and for bins of equal mass the probabilities themselves, as long as they are no more than 2^24 (64 MB), or
    histograms of them beyond (see `columns.Columns`). `notes` tells where either limit was reached.

    bins, min_count, adaptive: the binning of ece and mce (`calibration.reliability`). The class-wise errors and the
    decomposition of the Brier score take as many bins and drop none; classwise_l2 has 15 by definition.
    targets: labels, or those of several annotators (`human`): other metrics then take the majority label.

    >>> import torch
    >>> stream = Classification(min_count=0)
    >>> stream.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    >>> print(*(f"{k} {v:.3f}" for k, v in stream.compute().items()), sep=", ")
    accuracy 0.500, nll 0.511, brier 0.370, brier.reliability 0.370, brier.resolution 0.000, brier.uncertainty 0.000,
    confidence 0.750, ece 0.350, mce 0.600, adaptive_ece 0.350, classwise_ece 0.350, classwise_ace 0.350,
    classwise_l2 0.000
    """

    def __init__(
        self, *, bins: int = 20, min_count: int = 6, adaptive: bool = False, ignore_index: int | None = None
    ) -> None:
        calibration.check_binning(bins, min_count)
        self.min_count, self.adaptive, self.ignore_index = min_count, adaptive, ignore_index
        self.count = self.data = self.zeros = self.ties = 0
        self.mean, self.human = Mean(), Mean()
        self.bins, self.class_bins, self.columns = Bins(bins), ClassBins(bins), Columns()
        self._points = Points(POINTS)

    def update(self, probs: Tensor, targets: Tensor) -> None:
        """Add a batch: probs (N, C) or (N, C, *positions), targets (N,) or (N, *positions), or as probs for people."""
        p, y, shares, _ = checks.classified(probs, targets, start=self.data, ignore_index=self.ignore_index)
        self._check_kin(p, shares is not None)
        self.data += len(probs)
        if not len(y):
            return
        self.count += len(y)
        confidence, correct, surprise, squared = p.amax(1), correct_each(p, y), nll_each(p, y), brier_each(p, y)
        self.zeros += int((surprise >= -math.log(FLOOR)).sum())
        norm, chosen = p.square().sum(1), p.gather(1, y[:, None]).squeeze(1)
        self.mean.update(
            accuracy=correct, nll=surprise, brier=squared, confidence=confidence, squared=norm, chosen=chosen
        )
        self._points.update(
            correct=correct.float(), confidence=confidence.float(), nll=surprise.float(), brier=squared.float()
        )
        self.bins.update(confidence, correct)
        self.class_bins.update(p, y)
        self.columns.update(p, y)
        if shares is not None:
            self.ties += int(((shares == shares.amax(1, keepdim=True)).sum(1) > 1).sum())
            self.human.update(**human.each(p, shares))

    def _check_kin(self, p: Tensor, several: bool) -> None:
        """Refuse a batch whose classes or kind of targets differ from those of earlier batches."""
        if self.count and p.shape[1] != self.columns.classes:
            raise EvaluationError(
                f"probs: expected {self.columns.classes} classes as in the batches before, received {p.shape[1]}"
            )
        if self.count and several != bool(self.human.count):
            kinds = ("labels", "labels by several annotators")
            raise EvaluationError(
                f"targets: expected {kinds[not several]} as in the batches before, received {kinds[several]}"
            )

    def compute(self) -> dict[str, float]:
        """All metrics; ece and mce are NaN where every bin is too small to count."""
        checks.nonempty(self.count, "classification metrics")
        mean = self.mean.compute()
        curve, points, table = self.reliability(), self._points.compute(), self.class_bins.table()
        parts = decompose(table, squared=mean.pop("squared"), chosen=mean.pop("chosen"))
        confidence, bins = mean.pop("confidence"), len(self.bins.count)
        adaptive = calibration.equal_mass(points["confidence"], points["correct"], bins=bins, min_count=0)
        return {
            **mean,
            "brier.reliability": parts.reliability,
            "brier.resolution": parts.resolution,
            "brier.uncertainty": parts.uncertainty,
            "confidence": confidence,
            "ece": curve.ece(),
            "mce": curve.mce(),
            "adaptive_ece": adaptive.ece(),
            "classwise_ece": classwise.l1(table),
            "classwise_ace": classwise.l1(self.columns.table(bins)),
            "classwise_l2": classwise.debiased_l2(self.columns.table(classwise.L2_BINS)),
            **({f"human.{k}": v for k, v in self.human.compute().items()} if self.human.count else {}),
        }

    def points(self) -> dict[str, Tensor]:
        """correct, confidence, nll and brier of every point, (N,) float32 on the CPU: what ranks and resamples them."""
        checks.nonempty(self.count, "points")
        return self._points.compute()

    def reliability(self) -> calibration.Reliability:
        """The reliability curve that ece and mce are read from."""
        if self.adaptive and self.count:
            points, bins = self._points.compute(), len(self.bins.count)
            return calibration.equal_mass(points["confidence"], points["correct"], bins=bins, min_count=self.min_count)
        return calibration.from_bins(self.bins, self.min_count)

    def curves(self) -> dict[str, Any]:
        """Curves for the report: the reliability curve, and the histograms of confidence where right and wrong."""
        right, count = self.bins.correct.tolist(), self.bins.count.tolist()
        return {
            "reliability": self.reliability().to_dict(),
            "confidence": {
                "edges": self.bins.edges.tolist(),
                "right": [round(v) for v in right],
                "wrong": [round(n - v) for n, v in zip(count, right, strict=True)],
            },
        }

    def notes(self) -> list[str]:
        """Caveats about these metrics."""
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
        if not self.columns.exact:
            notes.append(
                f"Bins of equal mass per class come from histograms of {self.columns.cells_per_class} cells, since "
                f"{self.count:,} x {self.columns.classes:,} probabilities are more than {LIMIT:,}; classwise_ace and "
                f"classwise_l2 are then within 1 % or 0.0005 of the exact ones."
            )
        if self._points.chance < 1:
            notes.append(f"adaptive_ece is computed on a random {self._points.kept:,} of {self.count:,} points.")
        if self.ties:
            notes.append(f"{self.ties:,} of {self.count:,} votes were ties; the first class of the most is the label.")
        return notes
