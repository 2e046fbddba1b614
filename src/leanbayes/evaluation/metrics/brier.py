"""The Brier score, and its decomposition into reliability, resolution and uncertainty."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from . import checks
from .calibration import check_binning
from .streams import ClassBins, Table


def brier(probs: Tensor, targets: Tensor, *, ignore_index: int | None = None) -> float:
    """The mean squared distance of the probabilities from the truth: (1/N) sum_i sum_c (p_ic - [y_i = c])^2.

    Brier's own sum over classes, in [0, 2]; for two classes that is twice the one-sided form.

    >>> import torch
    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    return checks.mean_of("brier", brier_each, probs, targets, ignore_index)


def brier_each(p: Tensor, y: Tensor) -> Tensor:
    """Squared distance from the one-hot truth, expanded so that no (N, C) copy is made: |p|^2 - 2 p_y + 1."""
    return (p.square().sum(1) - 2 * p.gather(1, y[:, None]).squeeze(1) + 1).clamp(min=0)


@dataclasses.dataclass(frozen=True)
class Decomposition:
    """reliability: less is better. resolution: more is better. uncertainty: of the data, whatever the model."""

    reliability: float
    resolution: float
    uncertainty: float

    @property
    def score(self) -> float:
        """The Brier score: reliability - resolution + uncertainty."""
        return self.reliability - self.resolution + self.uncertainty


def decomposition(probs: Tensor, targets: Tensor, *, bins: int = 20, ignore_index: int | None = None) -> Decomposition:
    """Brier score = reliability - resolution + uncertainty, class by class and summed over classes.

    Over equal-width bins r of the probability of class c, those of `classwise_ece`, with n_cr data, mean probability
    p_cr and frequency o_cr of the class, and o_c its frequency in all N data (Murphy 1973):

        reliability = sum_c sum_r n_cr / N (p_cr - o_cr)^2,  uncertainty = sum_c o_c (1 - o_c),
        resolution  = sum_c sum_r n_cr / N (o_cr - o_c)^2 - variance of p in the bins + 2 covariance of p and y in them.

    Murphy's resolution is the first sum alone, and his identity holds only where all forecasts in a bin are equal; the
    two terms that complete it, so that it always holds, are those of Stephenson, Coelho and Jolliffe 2008.

    >>> import torch
    >>> parts = decomposition(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    >>> round(parts.reliability, 3), round(parts.resolution, 3), round(parts.uncertainty, 3), round(parts.score, 3)
    (0.37, 0.5, 0.5, 0.37)
    """
    check_binning(bins, 0)
    p, y = checks.classification(probs, targets, ignore_index=ignore_index)
    checks.nonempty(len(y), "brier.decomposition")
    state = ClassBins(bins)
    state.update(p, y)
    chosen = p.gather(1, y[:, None]).sum()
    return decompose(state.table(), squared=float(p.square().sum()) / len(y), chosen=float(chosen) / len(y))


def decompose(table: Table, *, squared: float, chosen: float) -> Decomposition:
    """The decomposition from sums by class and bin, the mean of sum_c p_c^2 and the mean of p_y."""
    count, size = float(table.size[0].sum()), table.size.clamp(min=1)
    mean, frequency = table.confidence / size, table.correct / size
    base = table.correct.sum(1, keepdim=True) / count
    weight = table.size / count
    variance = squared - float((weight * mean.square()).sum())
    covariance = chosen - float((weight * mean * frequency).sum())
    return Decomposition(
        reliability=float((weight * (mean - frequency).square()).sum()),
        resolution=float((weight * (frequency - base).square()).sum()) - variance + 2 * covariance,
        uncertainty=float((base * (1 - base)).sum()),
    )
