"""Class-wise calibration errors, which take the probabilities of all classes, not of the top label alone."""

from __future__ import annotations

import math

from torch import Tensor

from . import checks
from .calibration import check_binning
from .columns import equal_mass_table
from .streams import ClassBins, Table

L2_BINS = 15


def classwise_ece(probs: Tensor, targets: Tensor, *, bins: int = 20, ignore_index: int | None = None) -> float:
    """The class-wise expected calibration error over equal-width bins, the mean over classes.

    1/C sum_c sum_r |B_cr| / n |frequency of c in B_cr - mean p_c in B_cr|, where B_cr holds the data whose p_c lies in
    ((r-1)/R, r/R] (0 in the first); every bin counts. This is the static calibration
    error of Nixon et al. 2019 and the class-wise ECE of Kull et al. 2019.

    probs: (N, C) or (N, C, *positions); targets: (N,) or (N, *positions).

    >>> import torch
    >>> round(classwise_ece(torch.tensor([[0.9, 0.1]] * 10), torch.tensor([0] * 8 + [1] * 2)), 6)
    0.1
    """
    check_binning(bins, 0)
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), "classwise_ece")
    state = ClassBins(bins)
    state.update(p, y)
    return l1(state.table())


def classwise_ace(probs: Tensor, targets: Tensor, *, bins: int = 20, ignore_index: int | None = None) -> float:
    """The adaptive calibration error: `classwise_ece` over bins of equal mass (Nixon et al. 2019).

    Their mean over ranges weighs every bin alike; here it weighs by its data, which is the same where all bins have as
    many, and holds where ties make them unequal (equal probabilities share a bin, see `calibration.equal_mass`).

    >>> import torch
    >>> round(classwise_ace(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]), bins=2), 6)
    0.45
    """
    return l1(_equal_mass(probs, targets, bins, ignore_index, "classwise_ace"))


def classwise_l2(probs: Tensor, targets: Tensor, *, bins: int = L2_BINS, ignore_index: int | None = None) -> float:
    """The debiased class-wise L2 calibration error with 15 bins of equal mass (Kumar, Liang and Ma 2019).

    sqrt(1/C sum_c max(0, sum_r |B_cr| / n (gap_cr^2 - f_cr (1 - f_cr) / (|B_cr| - 1)))), f_cr being the frequency of c
    in bin r, gap_cr the distance of the mean p_c from it; a bin with one datum adds nothing. These are the numbers of
    the package uncertainty-calibration, ``get_calibration_error(probs, labels, p=2, debias=True, mode="marginal")``,
    which cuts the sorted probabilities of each class into 15 parts of equal size and calls it a lower bound for models
    with continuous outputs. (Where all classes have fewer than n/4 different probabilities the package takes a bin a
    value instead; here it is 15 bins always.) Papers on structured variational inference and on masked Bayesian
    networks report it as ECE.

    >>> import torch
    >>> round(classwise_l2(torch.tensor([[0.9, 0.1]] * 10), torch.tensor([0] * 5 + [1] * 5)), 4)
    0.3636
    """
    return debiased_l2(_equal_mass(probs, targets, bins, ignore_index, "classwise_l2"))


def l1(table: Table) -> float:
    """1/C sum_c sum_r |B_cr| / n |frequency - confidence|, from sums by class and bin."""
    count = float(table.size[0].sum())
    return float((table.correct - table.confidence).abs().sum(1).mean()) / count


def debiased_l2(table: Table) -> float:
    """The root of the mean over classes of the squared error, minus its expectation for a calibrated model."""
    count = table.size.clamp(min=1)
    gap, frequency = (table.correct - table.confidence) / count, table.correct / count
    chance = frequency * (1 - frequency) / (count - 1).clamp(min=1)
    squared = (count * (gap.square() - chance)).where(table.size > 1, 0).sum(1) / table.size.sum(1)
    return math.sqrt(float(squared.clamp(min=0).mean()))


def _equal_mass(probs: Tensor, targets: Tensor, bins: int, ignore_index: int | None, what: str) -> Table:
    check_binning(bins, 0)
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), what)
    return equal_mass_table(p, y, bins)
