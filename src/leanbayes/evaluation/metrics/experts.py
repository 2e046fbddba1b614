"""The stream of a segmentation that several experts have annotated: a few sums an image, and their bootstrap."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import torch
from torch import Tensor

from ...errors import EvaluationError, MissingExtraError
from . import bootstrap, segmentation
from .calibration import Reliability, from_bins
from .human import votes
from .streams import Bins

ONE_EXPERT = (
    "One annotator gives no estimate of the experts' disagreement: ged.unbiased and diversity.experts are left out."
)
NO_SCIPY = "hungarian_iou is left out, since it needs scipy: pip install 'leanbayes[evaluation]'."
BLAND = "variance_correlation is undefined: the samples, or the annotators, agree in every pixel."


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums of N images: scores whose means are metrics, and sums over pixels.

    scores: (N,) each, by name. moments: (N, 6), of `variance_correlation`. pixels: (N, bins, 3), of
    `pixel_calibration`: how many pixels of a class lie in a bin, the sum of their probabilities, that of their shares.
    """

    scores: dict[str, Tensor]
    moments: Tensor
    pixels: Tensor

    def compute(self, min_count: int = 6) -> dict[str, float]:
        """All metrics, over all images."""
        means = {name: float(values.mean()) for name, values in self.scores.items()}
        rest = _of_sums(self.moments.sum(0).numpy(), self.pixels.sum(0).numpy(), min_count)
        return means | {name: float(values) for name, values in rest.items()}

    def reliability(self, min_count: int = 6) -> Reliability:
        """The curve of `pixel_calibration`."""
        total, bins = self.pixels.sum(0), Bins(self.pixels.shape[1])
        bins.count, bins.confidence, bins.correct = total[:, 0].long(), total[:, 1], total[:, 2]
        return from_bins(bins, min_count)

    def replicates(
        self, groups: np.ndarray | None = None, *, replicates: int = 200, seed: int = 0, min_count: int = 6
    ) -> dict[str, list[float]]:
        """Every metric on images that are drawn anew with replacement, or on whole groups of them.

        groups: the group of each image, from 0 (N,). Images of a patient resemble one another, so that resampling
        single images would give intervals that are too narrow. A replicate draws as many groups as there are.
        """
        count = len(self.moments)
        group_of_image = np.arange(count) if groups is None else groups
        size = int(group_of_image.max()) + 1
        columns = [np.ones((count, 1)), *(values.double().numpy()[:, None] for values in self.scores.values())]
        columns += [self.moments.numpy(), self.pixels.flatten(1).numpy()]
        of_images = np.concatenate(columns, 1)
        sums = np.zeros((size, of_images.shape[1]))
        np.add.at(sums, group_of_image, of_images)
        drawn = np.stack([w @ sums for w in bootstrap.resamplings(size, replicates=replicates, seed=seed)])
        total, scores, moments, pixels = np.split(drawn, np.cumsum([1, len(self.scores), 6]), axis=1)
        found = dict(zip(self.scores, (scores / total).T, strict=True))
        found |= _of_sums(moments, pixels.reshape(-1, *self.pixels.shape[1:]), min_count)
        return {name: values.tolist() for name, values in found.items()}


class Experts:
    """All metrics of sampled segmentations against several annotators, from a few sums per image.

    bins: number of bins of the probability of a pixel.

    >>> masks = torch.rand(6, 4, 8, 8, generator=torch.Generator().manual_seed(0)) > 0.5
    >>> stream, share = Experts(), masks.float().mean(1)
    >>> stream.update(masks, torch.stack([1 - share, share], 1), masks)
    >>> print(*(f"{k} {v:.2f}" for k, v in stream.sums().compute().items()), sep=", ")
    ged.unbiased -0.33, ged.plug_in 0.00, hungarian_iou 1.00, dice 0.63, diversity 0.66, diversity.experts 0.66,
    variance_correlation 1.00, pixel_ece 0.00
    """

    def __init__(self, bins: int = 20) -> None:
        self.bins, self.annotators = bins, 0
        self.parts: list[dict[str, Tensor]] = []
        self.moments: list[Tensor] = []
        self.pixels: list[Tensor] = []

    def update(self, samples: Tensor, probs: Tensor, annotations: Tensor, *, exhaustive: bool = False) -> None:
        """Add N images.

        samples: masks (N, S, H, W), labels where there are more than two classes. probs: of the mean map, (N, C, H, W).
        annotations: (N, A, H, W), the same A in every batch. exhaustive: as in `segmentation.ged`.
        """
        classes, annotators = probs.shape[1], annotations.shape[1]
        if self.annotators not in (0, annotators):
            raise EvaluationError(
                f"targets: expected {self.annotators} annotators as in the batches before, received {annotators}; "
                "repeat annotations where some are missing, or evaluate each number of annotators by itself"
            )
        self.annotators = annotators
        number = classes if classes > 2 else None
        found = segmentation.distances(samples, annotations, num_classes=number)
        several = samples.shape[1] > 1
        scores = {}
        if annotators > 1 and (several or exhaustive):
            scores["ged.unbiased"] = found.ged(unbiased=True, exhaustive=exhaustive)
        scores["ged.plug_in"] = found.ged()
        with contextlib.suppress(MissingExtraError):
            scores["hungarian_iou"] = found.hungarian_iou()
        scores["dice"] = segmentation.dice(probs.argmax(1), annotations, num_classes=number)
        if several or exhaustive:
            scores["diversity"] = segmentation.mean_pair(found.within_samples, not exhaustive, "samples")
        if annotators > 1:
            scores["diversity.experts"] = segmentation.mean_pair(found.within_annotations, True, "annotations")
        self.parts.append({name: values.cpu() for name, values in scores.items()})
        moments, pixels = [], []
        for label in range(1, classes):
            marked = annotations == label
            moments.append(segmentation.variance_moments(samples == label, marked))
            pixels.append(_binned(probs[:, label], marked.double().mean(1), self.bins))
        self.moments.append(torch.from_numpy(np.sum(moments, 0)))
        self.pixels.append(torch.stack(pixels).sum(0))

    def sums(self) -> Sums:
        """The sums of all images so far, in the order they came."""
        scores = {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}
        return Sums(scores, torch.cat(self.moments), torch.cat(self.pixels))

    def notes(self) -> list[str]:
        """Caveats about these metrics."""
        bland = np.isnan(segmentation.correlation(torch.cat(self.moments).sum(0).numpy()))
        unmatched = "hungarian_iou" not in self.parts[0]
        return [ONE_EXPERT] * (self.annotators == 1) + [BLAND] * bool(bland) + [NO_SCIPY] * unmatched


def is_annotated(probs: Tensor, targets: Tensor) -> bool:
    """Whether targets are masks by several annotators (N, A, H, W), rather than labels or votes.

    Bool masks always are. Integers in the shape of the probabilities are votes, or labels of as many people as there
    are classes: labels, where a pixel with no vote stands beside one with several, none above the last class.

    >>> probs = torch.full((3, 2, 8, 8), 0.5)
    >>> [is_annotated(probs, torch.zeros(3, n, 8, 8, dtype=torch.long)) for n in (1, 2, 4)]
    [False, False, True]
    """
    if probs.ndim != 4 or not isinstance(targets, Tensor) or targets.ndim != 4 or targets.is_floating_point():
        return False
    if targets.shape[:1] + targets.shape[2:] != probs.shape[:1] + probs.shape[2:]:
        return False
    if targets.dtype is torch.bool or targets.shape != probs.shape:
        return targets.dtype is torch.bool or targets.shape[1] > 1
    sums, classes = targets.sum(1), probs.shape[1]
    return bool((sums == 0).any() and (sums > 1).any() and int(targets.max()) < classes)


def as_votes(probs: Tensor, targets: Tensor, ignore_index: int | None) -> Tensor:
    """Masks by several annotators as counts of votes, which the metrics of pixels take; other targets unchanged."""
    return votes(targets, probs.shape[1], ignore_index=ignore_index) if is_annotated(probs, targets) else targets


def _of_sums(moments: np.ndarray, pixels: np.ndarray, min_count: int) -> dict[str, np.ndarray]:
    """The metrics that are not means over images, from their sums (..., 6) and (..., bins, 3)."""
    held, sure, share = np.moveaxis(pixels, -1, 0)
    counts = held >= max(min_count, 1)
    ece = (np.abs(share - sure) * counts).sum(-1) / held.sum(-1)
    found = {"variance_correlation": segmentation.correlation(moments)}
    return found | {"pixel_ece": np.where(counts.any(-1), ece, np.nan)}


def _binned(probs: Tensor, shares: Tensor, bins: int) -> Tensor:
    """For each of N images, how many pixels lie in a bin of the probability, and both sums: (N, bins, 3)."""
    p, share = probs.double().flatten(1).cpu(), shares.flatten(1).cpu()
    edges = torch.arange(bins + 1, dtype=torch.float64) / bins
    where = (torch.bucketize(p, edges) - 1).clamp(0, bins - 1)
    columns = (torch.ones_like(p), p, share)
    return torch.stack([p.new_zeros(len(p), bins).scatter_add_(1, where, column) for column in columns], 2)
