"""Example images of an evaluation: the annotation of each expert, the sampled segmentations, and the uncertainty."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import batches
from ..prediction import Predictive
from ..prediction.predictive import entropy
from ..report.masks import PALETTE, outline, picture, png, shades, thinned
from ..sampling import mix
from .metrics.human import votes

EACH = 2
"""Images of each quarter of the experts' disagreement."""
SHOWN = 6
"""Experts and samples of an image that are shown."""


class Examples:
    """Choose random examples from a stream of images, ``each`` of every quarter of the experts' disagreement.

    The choice depends on the annotations only, not on predictions, so that the reports of several models show the same
    images. Images are kept as text: PNG files in base64, and outlines as SVG paths.
    """

    def __init__(self, each: int = EACH) -> None:
        self.each = each
        self.kept: dict[int, list[tuple[int, dict[str, Any]]]] = {}

    def update(
        self, start: int, inputs: Any, pred: Predictive, masks: Tensor, annotations: Tensor, scores: dict[str, Tensor]
    ) -> None:
        """Add N images; ``start`` images came before. masks: (N, S, H, W); scores: (N,) each."""
        images = batches.first_tensor(inputs)
        if images.ndim != 4:
            return
        doubt = scores.get("diversity.experts", torch.zeros(len(masks)))
        for i, quarter in enumerate((4 * doubt).long().clamp(max=3).tolist()):
            held, key = self.kept.setdefault(quarter, []), mix(0, start + i)
            if len(held) == self.each and key > held[-1][0]:
                continue
            numbers = {name: round(float(values[i]), 4) for name, values in scores.items()}
            made = {"index": start + i, "scores": numbers, **_shown(images[i], pred, i, masks[i], annotations[i])}
            self.kept[quarter] = sorted([*held, (key, made)], key=lambda pair: pair[0])[: self.each]

    def compute(self) -> list[dict[str, Any]]:
        """The chosen images in the order of the experts' disagreement."""
        return [example for quarter in sorted(self.kept) for _, example in self.kept[quarter]]


def _shown(image: Tensor, pred: Predictive, i: int, masks: Tensor, annotations: Tensor) -> dict[str, Any]:
    """One image as plain text: experts and samples are lists of outlines, one of each class."""
    classes = pred.mean.shape[1]
    counts = votes(annotations.long().unsqueeze(0), classes)[0].double()
    shares = counts / counts.sum(0).clamp(min=1)
    top = math.log(classes)
    pixels = picture(thinned(_array(image)))
    return {
        "size": [pixels.shape[1], pixels.shape[0]],
        "image": _text(png(pixels)),
        "experts": [_outlines(mask, classes) for mask in annotations[:SHOWN]],
        "samples": [_outlines(mask, classes) for mask in masks[:SHOWN]],
        "share": _map(1 - shares[0]),
        "mean": _map(1 - pred.mean[i, 0]),
        "expert_entropy": _map(entropy(shares, 0), top),
        "entropy": _map(entropy(pred.mean[i], 0), top),
        "mutual_information": _map(pred.epistemic[i], top),
    }


def _outlines(mask: Tensor, classes: int) -> list[str]:
    labels = thinned(_array(mask))
    return [outline(labels == label) for label in range(1, classes)]


def _map(values: Tensor, top: float = 1.0) -> str:
    return _text(png(shades(thinned(_array(values)), 0, top), PALETTE))


def _array(values: Tensor) -> np.ndarray:
    found: np.ndarray = values.detach().cpu().numpy()
    return found


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
