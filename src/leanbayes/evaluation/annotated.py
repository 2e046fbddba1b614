"""Images that several experts annotated: what a stage of an evaluation learns from them, and keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..prediction import Predictive
from .examples import Examples
from .metrics.experts import Experts, Sums
from .resume import Outcome

NUMBERS = 2**24
"""Pixels of samples that are looked at together; their probabilities are kept meanwhile, 128 MB of two classes."""


class Annotated:
    """The stream of annotated images, and a few of them to look at.

    bins: of the probability of a pixel. ignore_index: the label of pixels that do not count; a pixel that any expert
    left out counts for none, and for no sample.
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
        """What is kept: the examples and notes, and the sums of every image; nothing where no image was annotated."""
        if not self.count:
            return Outcome({})
        sums = self.experts.sums()
        tensors = {f"experts/score {name}": values for name, values in sums.scores.items()}
        tensors |= {"experts/moments": sums.moments, "experts/pixels": sums.pixels}
        values = {"annotators": self.experts.annotators, "examples": self.examples.compute()}
        return Outcome({**values, "notes": self.experts.notes()}, tensors)


def sums_of(tensors: dict[str, Tensor]) -> Sums | None:
    """What `Annotated.outcome` kept; None where no image was annotated."""
    if "experts/moments" not in tensors:
        return None
    prefix = "experts/score "
    scores = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
    return Sums(scores, tensors["experts/moments"], tensors["experts/pixels"])


def rows_at_once(targets: Any, samples: int) -> int | None:
    """How many images to predict at a time where each sample has to be kept, as (N, A, H, W) targets ask; else None."""
    if not isinstance(targets, Tensor) or targets.ndim != 4 or targets.is_floating_point():
        return None
    if targets.dtype is not torch.bool and targets.shape[1] == 1:
        return None
    return max(1, NUMBERS // max(samples * targets.shape[2] * targets.shape[3], 1))
