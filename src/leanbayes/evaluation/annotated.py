"""Metrics and examples of images that several experts annotated, computed and saved as a stage of an evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..prediction import Predictive
from .examples import Examples
from .metrics.experts import Experts, Sums
from .resume import Outcome

NUMBERS = 2**24
"""Pixels of samples in one prediction, whose probabilities are in memory together: 128 MB for two classes."""


class Annotated:
    """The stream of annotated images, and a few of them as examples.

    bins: number of bins of the probability of a pixel.
    ignore_index: the label of pixels that do not count. A pixel that any expert labelled so counts for no expert and
    for no sample.
    """

    def __init__(self, bins: int, ignore_index: int | None) -> None:
        self.experts, self.examples, self.ignore_index = Experts(bins), Examples(), ignore_index

    def update(self, start: int, inputs: Any, pred: Predictive, targets: Tensor, *, exhaustive: bool) -> None:
        """Add predictions whose samples were kept; ``start`` images came before. exhaustive: as in `ged`."""
        masks = pred.masks().transpose(0, 1)
        targets = targets.to(masks.device)
        if self.ignore_index is not None and targets.dtype is not torch.bool:
            ignored = (targets == self.ignore_index).any(1, keepdim=True)
            masks, targets = masks.masked_fill(ignored, 0), targets.masked_fill(ignored, 0)
        self.experts.update(masks, pred.probs, targets, exhaustive=exhaustive)
        self.examples.update(start, inputs, pred, masks, targets, self.experts.parts[-1])

    @property
    def count(self) -> int:
        """How many images there were."""
        return sum(map(len, self.experts.moments))

    def outcome(self) -> Outcome:
        """The examples, notes and sums of every image; empty if no image was annotated."""
        if not self.count:
            return Outcome({})
        sums = self.experts.sums()
        tensors = {f"experts/score {name}": values for name, values in sums.scores.items()}
        tensors |= {"experts/moments": sums.moments, "experts/pixels": sums.pixels}
        values = {"annotators": self.experts.annotators, "examples": self.examples.compute()}
        return Outcome({**values, "notes": self.experts.notes()}, tensors)


def sums_of(tensors: dict[str, Tensor]) -> Sums | None:
    """The sums among the tensors of `Annotated.outcome`; None if no image was annotated."""
    if "experts/moments" not in tensors:
        return None
    prefix = "experts/score "
    scores = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
    return Sums(scores, tensors["experts/moments"], tensors["experts/pixels"])


def rows_at_once(targets: Any, samples: int) -> int | None:
    """How many images to predict at a time if all samples are kept, as targets (N, A, H, W) require; else None."""
    if not isinstance(targets, Tensor) or targets.ndim != 4 or targets.is_floating_point():
        return None
    if targets.dtype is not torch.bool and targets.shape[1] == 1:
        return None
    return max(1, NUMBERS // max(samples * targets.shape[2] * targets.shape[3], 1))
