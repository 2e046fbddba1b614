"""Sampled segmentations compared with those of several experts: energy distance, matched IoU, Dice, calibration.

Everything follows from the distance d = 1 - IoU of two masks; two empty masks are at distance 0. With several classes d
is the mean over the classes other than 0, the background. The functions take one image, or N of them at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...checks import flag, whole_number
from ...errors import EvaluationError
from ...optional import require
from . import checks
from .calibration import Reliability, check_binning, from_bins
from .streams import Bins

AT_ONCE = 2**23
"""Pixels of masks compared at a time, 32 MB in float32."""


class Distances(NamedTuple):
    """1 - IoU of every pair of masks: of S samples and A annotations (N, S, A), and of each of these among themselves.

    In float64. within_samples: (N, S, S). within_annotations: (N, A, A).
    """

    between: Tensor
    within_samples: Tensor
    within_annotations: Tensor

    def ged(self, *, unbiased: bool = False, exhaustive: bool = False) -> Tensor:
        """The generalised energy distance of each image (N,); see `ged`."""
        within_samples = mean_pair(self.within_samples, unbiased and not exhaustive, "samples")
        experts = mean_pair(self.within_annotations, unbiased, "annotations")
        return 2 * self.between.mean((1, 2)) - within_samples - experts

    def hungarian_iou(self) -> Tensor:
        """The mean IoU of each image after the best matching (N,); see `hungarian_iou`."""
        require("scipy", "evaluation", "hungarian_iou")
        from scipy.optimize import linear_sum_assignment

        _, samples, annotations = self.between.shape
        most = math.lcm(samples, annotations)
        costs = self.between.repeat_interleave(most // samples, 1).repeat_interleave(most // annotations, 2)
        pairs = costs.cpu().numpy()
        return torch.tensor([1 - cost[linear_sum_assignment(cost)].mean() for cost in pairs], dtype=torch.float64)


def ged(
    samples: Any, annotations: Any, *, unbiased: bool = False, exhaustive: bool = False, num_classes: int | None = None
) -> Tensor:
    """The squared generalised energy distance 2 E d(s, a) - E d(s, s') - E d(a, a') of each image, (N,) in float64.

    samples, annotations: bool masks (N, S, H, W) and (N, A, H, W), or of one image (S, H, W) and (A, H, W), which gives
    a number; 0 and 1 of other types are masks as well. num_classes: of integer labels instead of masks.

    unbiased=False averages over all pairs, a mask with itself included: the estimate of the papers. It is never
    negative and 0 for identical sets, but too large by E d(s, s') / S + E d(a, a') / A, so that it falls with the
    number of samples for any model. unbiased=True leaves those pairs out (a U-statistic): its expectation is the
    distance of the distributions, and of a single image it may be negative. It needs two of both.
    exhaustive: the samples are all that the model can predict, equally likely (the members of an ensemble, the single
    prediction of a network without noise): then E d(s, s') over all pairs is exact, and one sample is enough.

    >>> a, b = torch.tensor([[[1, 1, 0, 0]]]), torch.tensor([[[0, 1, 1, 0]]])  # IoU 1/3
    >>> ged(a, b), ged(a, a)
    (tensor(1.3333, dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    for name, value in (("unbiased", unbiased), ("exhaustive", exhaustive)):
        flag(name, value, error=EvaluationError)
    found = distances(samples, annotations, num_classes=num_classes)
    return _as_given(found.ged(unbiased=unbiased, exhaustive=exhaustive), annotations)


def hungarian_iou(samples: Any, annotations: Any, *, num_classes: int | None = None) -> Tensor:
    """The mean IoU of samples and annotations, each matched with one of the other, as well as can be (N,).

    Where there are more of one than of the other, both are repeated until they are as many (Kohl et al. 2019). Greater
    is better, 1 the best. Needs scipy. Arguments as in `ged`.

    >>> masks = torch.tensor([[[1, 1, 0]], [[0, 0, 1]]])
    >>> hungarian_iou(masks, masks.flip(0)), hungarian_iou(masks[:1], masks)
    (tensor(1., dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    return _as_given(distances(samples, annotations, num_classes=num_classes).hungarian_iou(), annotations)


def diversity(masks: Any, *, num_classes: int | None = None) -> Tensor:
    """The mean distance 1 - IoU of two different masks of an image (N,): 0 where all are equal.

    masks: (N, S, H, W), or (S, H, W) of one image, S of 2 or more; an unbiased estimate of E d(s, s').

    >>> diversity(torch.tensor([[[1, 1, 0]], [[0, 1, 0]], [[0, 1, 0]]]))  # 1/2, 1/2 and 0
    tensor(0.3333, dtype=torch.float64)
    """
    found = distances(masks, masks, num_classes=num_classes)
    return _as_given(mean_pair(found.between, True, "masks"), masks)


def dice(masks: Any, annotations: Any, *, num_classes: int | None = None) -> Tensor:
    """The Dice coefficient of one mask an image with each annotation, averaged over these (N,).

    2 |m and a| / (|m| + |a|), and 1 where both are empty. masks: (N, H, W), as ``pred.labels`` has them for the mean
    map, or (H, W); annotations: (N, A, H, W) or (A, H, W). With several classes the mean over those other than 0.

    >>> dice(torch.tensor([[1, 1, 0, 0]]), torch.tensor([[[0, 1, 1, 0]], [[1, 1, 0, 0]]]))
    tensor(0.7500, dtype=torch.float64)
    """
    found = distances(_single(masks, "masks"), annotations, num_classes=num_classes, dice=True)
    return _as_given(1 - found.between.mean((1, 2)), annotations)


def pixel_calibration(probs: Any, annotations: Any, *, bins: int = 20, min_count: int = 6) -> Reliability:
    """Probabilities of a pixel against the share of experts who marked it, in bins of the probability.

    probs: of the foreground, (N, H, W) or (H, W). annotations: masks (N, A, H, W) or (A, H, W). Where the predictions
    are calibrated, of pixels given p a share p is marked. The result has ``ece()``, ``mce()`` and the reliability curve
    (its ``accuracy`` is that share). Most pixels are obvious background and make the ECE small, so look at the curve.

    >>> share = torch.tensor([[[1, 0]], [[1, 0]], [[1, 1]], [[0, 0]]])
    >>> pixel_calibration(torch.tensor([[0.75, 0.5]]), share, min_count=0).ece()  # 3/4 and 1/4 were marked
    0.125
    """
    check_binning(bins, min_count)
    p = _single(probs, "probs")
    marked = _masks(annotations, "annotations", None, p)
    if p.is_complex() or not bool(((p >= 0) & (p <= 1)).all()):
        raise EvaluationError("probs: expected probabilities from 0 to 1; of two classes take probs[:, 1]")
    state = Bins(bins)
    state.update(p.reshape(-1), marked.double().mean(1).reshape(-1))
    return from_bins(state, min_count)


def variance_correlation(samples: Any, annotations: Any) -> float:
    """The correlation of two variances in every pixel, all images together: of the samples and of the experts' masks.

    Near 1 where the model is unsure just where experts disagree; NaN where one of them varies nowhere.
    samples: masks or probabilities of the foreground, (N, S, H, W) or (S, H, W); annotations as in `ged`.

    >>> masks = torch.tensor([[[1, 1, 0]], [[1, 0, 0]]])
    >>> variance_correlation(masks, masks), variance_correlation(masks.flip(2), masks)
    (1.0, 1.0)
    """
    values = _tensor(samples, "samples")
    marked = _masks(annotations, "annotations", None, values)
    values = values.reshape(len(marked), -1, *marked.shape[2:])
    return float(correlation(variance_moments(values, marked).sum(0)))


def distances(samples: Any, annotations: Any, *, num_classes: int | None = None, dice: bool = False) -> Distances:
    """1 - IoU of all pairs of masks of each image, through one matrix product an image; arguments as in `ged`.

    dice: 1 - Dice instead.

    >>> masks = torch.rand(3, 5, 8, 8) > 0.5
    >>> [tuple(d.shape) for d in distances(masks, masks[:, :2])]
    [(3, 5, 2), (3, 5, 5), (3, 2, 2)]
    """
    b = _masks(annotations, "annotations", num_classes, None)
    a = _masks(samples, "samples", num_classes, _tensor(annotations, "annotations")).to(b.device)
    count, classes = a.shape[1], (num_classes or 2) - 1
    step = max(1, AT_ONCE // max((count + b.shape[1]) * b[:1, 0].numel(), 1))
    found = []
    for first in range(0, len(a), step):
        masks = torch.cat([a[first : first + step], b[first : first + step]], 1).flatten(2)
        found.append(torch.stack([_pairs(masks == label, dice) for label in range(1, classes + 1)]).mean(0))
    every = torch.cat(found) if found else torch.zeros(0, count + b.shape[1], count + b.shape[1], dtype=torch.float64)
    return Distances(every[:, :count, count:], every[:, :count, :count], every[:, count:, count:])


def variance_moments(samples: Tensor, annotations: Tensor) -> np.ndarray:
    """Sums over the pixels of each image, (N, 6), from which `correlation` follows: 1, x, y, xx, yy, xy.

    x: the variance of the samples in a pixel, y: that of the annotations; (N, S, H, W) and (N, A, H, W).
    """
    x = samples.double().var(1, unbiased=False).flatten(1)
    y = annotations.double().var(1, unbiased=False).flatten(1).to(x.device)
    columns = (torch.ones_like(x), x, y, x.square(), y.square(), x * y)
    return torch.stack([column.sum(1) for column in columns], 1).cpu().numpy()


def correlation(moments: np.ndarray) -> np.ndarray:
    """Pearson's correlation from sums (..., 6) of 1, x, y, xx, yy, xy; NaN where one does not vary.

    >>> float(correlation(np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0])))  # of (0, 0) and (1, 1)
    1.0
    """
    n, x, y, xx, yy, xy = np.moveaxis(moments, -1, 0)
    of_x, of_y = n * xx - x * x, n * yy - y * y
    varies = (of_x > 1e-12 * n * xx) & (of_y > 1e-12 * n * yy)  # below it, nothing but rounding is left
    return np.where(varies, (n * xy - x * y) / np.sqrt(np.where(varies, of_x * of_y, 1)), np.nan)


def _pairs(masks: Tensor, dice: bool) -> Tensor:
    """1 - IoU (or Dice) of all pairs of bool masks (N, M, pixels): (N, M, M)."""
    exact = torch.float32 if masks.shape[2] < 2**24 else torch.float64  # counts of pixels are whole numbers
    flat = masks.to(exact)
    common = torch.bmm(flat, flat.transpose(1, 2)).double()
    size = common.diagonal(dim1=1, dim2=2)
    both = size.unsqueeze(2) + size.unsqueeze(1)
    denominator, numerator = (both, 2 * common) if dice else (both - common, common)
    return torch.where(denominator > 0, 1 - numerator / denominator.clamp(min=1), 0.0)


def mean_pair(distances: Tensor, unbiased: bool, what: str) -> Tensor:
    """The mean of distances within a set (N, M, M): (N,); unbiased: of different masks only."""
    count = distances.shape[1]
    if unbiased and count < 2:
        raise EvaluationError(
            f"{what}: expected two masks of an image or more for an unbiased estimate, received {count}"
            + ("; exhaustive=True if the model has only this prediction" if what == "samples" else "")
        )
    return distances.sum((1, 2)) / (count * (count - 1) if unbiased else count**2)


def _masks(values: Any, name: str, num_classes: int | None, like: Tensor | None) -> Tensor:
    """Labels (N, M, H, W) of checked masks; like: what has the same images, of the same size."""
    masks = _tensor(values, name)
    if num_classes is not None:
        num_classes = whole_number("num_classes", num_classes, at_least=2, at_most=2**15, error=EvaluationError)
    if masks.ndim not in (3, 4) or masks.shape[-1] * masks.shape[-2] == 0 or masks.shape[-3] == 0:
        raise EvaluationError(
            f"{name}: expected masks (N, {name}, H, W), or ({name}, H, W) of one image, with at least one mask and one "
            f"pixel, received shape {tuple(masks.shape)}"
        )
    if like is not None and (masks.shape[:-3] != like.shape[:-3] or masks.shape[-2:] != like.shape[-2:]):
        raise EvaluationError(
            f"{name}: expected the images of the other masks, whose shape is {tuple(like.shape)}, received "
            f"{tuple(masks.shape)}; only the third size from the end may differ"
        )
    if masks.dtype is not torch.bool:
        top = (num_classes or 2) - 1
        good = (masks >= 0) & (masks <= top) & (masks == masks.round()) if not masks.is_complex() else None
        if good is None or not bool(good.all()):
            bad = "" if good is None else f", for example {masks[~good][0].item():.6g}"
            hint = "; threshold probabilities: probs > 0.5" if num_classes is None else ""
            raise EvaluationError(f"{name}: expected whole numbers from 0 to {top}{bad}{hint}")
        masks = masks.to(torch.int16)
    return masks if masks.ndim == 4 else masks.unsqueeze(0)


def _single(values: Any, name: str) -> Tensor:
    """One map an image, (N, 1, H, W) or (1, H, W)."""
    found = _tensor(values, name)
    if found.ndim not in (2, 3):
        raise EvaluationError(
            f"{name}: expected shape (N, H, W), or (H, W) of one image, received {tuple(found.shape)}"
        )
    return found.unsqueeze(-3)


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = torch.from_numpy(np.ascontiguousarray(values))
    checks.dense(values, name)
    return values.detach().cpu() if values.device.type == "mps" else values.detach()  # which has no float64


def _as_given(values: Tensor, annotations: Any) -> Tensor:
    """A number for one image, (N,) for several."""
    return values[0] if annotations.ndim == 3 else values
