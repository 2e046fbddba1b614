"""Synthetic lesions, outlined by four annotators who disagree in a known way, to try segmentation on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Arrays
from .files import Request
from .lidc import by_group

COUNT, SIDE, SLICES, ANNOTATORS = 600, 32, 4, 4


class Blobs(NamedTuple):
    """n slices, their masks, and the true probabilities.

    images: (n, 1, side, side) uint8. masks: (n, annotators, side, side) bool. patients: (n,). probability: (n, side,
    side), that an annotator marks a pixel; annotators are independent given the image.
    """

    images: np.ndarray
    masks: np.ndarray
    patients: np.ndarray
    probability: np.ndarray


def blobs(count: int = COUNT, side: int = SIDE, annotators: int = ANNOTATORS, seed: int = 0) -> Blobs:
    """Slices with one round lesion each, brighter than the noise around it, and with a faint rim.

    An annotator marks the lesion with a probability that falls with its contrast, from 1 to about a quarter, and
    includes the rim half of the time. Four slices in a row are of one patient and have one contrast.

    >>> made = blobs(8)
    >>> made.images.shape, made.masks.shape, made.patients.tolist()
    ((8, 1, 32, 32), (8, 4, 32, 32), [0, 0, 0, 0, 1, 1, 1, 1])
    """
    random = np.random.RandomState(seed)  # numpy never changes its stream
    patients = np.arange(count) // SLICES
    contrast = random.uniform(0.15, 0.6, patients.max() + 1)[patients, None, None]
    radius = random.uniform(0.1, 0.2, (count, 1, 1)) * side
    middle = random.uniform(0.3, 0.7, (2, count, 1, 1)) * side
    away = np.hypot(np.arange(side)[:, None] + 0.5 - middle[0], np.arange(side) + 0.5 - middle[1])
    core, whole = away <= radius, away <= 1.5 * radius
    pixels = 0.2 + contrast * (core + 0.5 * (whole & ~core)) + random.normal(0, 0.06, (count, side, side))
    marks = np.clip(0.25 + 0.75 * (contrast - 0.15) / 0.3, 0, 1)
    marked = random.uniform(size=(count, annotators, 1, 1)) < marks[:, None]
    rim = random.uniform(size=(count, annotators, 1, 1)) < 0.5
    masks = marked & np.where(rim, whole[:, None], core[:, None])
    images = np.rint(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
    return Blobs(images[:, None], masks, patients, marks * (core + 0.5 * (whole & ~core)))


def build(request: Request) -> Arrays:
    """600 slices of 150 patients, split by patient (60, 20, 20 %), the same whatever the seed."""
    del request
    made = blobs()
    return by_group(made.images, made.masks, made.patients, ("background", "lesion"))
