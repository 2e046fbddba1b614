"""The arrays of a data set as a reader returns them, and checks of images and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import DataError


@dataclass(frozen=True)
class Arrays:
    """The parts of a data set as stored on disk, not normalised.

    ``parts`` maps "train", "val", "test" to (inputs, targets), or to (inputs,) if there are no labels. Images are
    uint8 of shape (n, channels, height, width), `full_scale` the value that stands for 1.0; features are floats of
    shape (n, features). `normalise_like` names the set whose statistics normalise these inputs. `groups`, of parts by
    name, are whole numbers (n,), the same for all data of a patient.
    """

    task: str
    parts: Mapping[str, tuple[np.ndarray, ...]]
    class_names: tuple[str, ...] = ()
    full_scale: int = 255
    normalise_like: str | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)


def damaged(path: Path, expected: str, error: Exception, advice: str = "delete it and fetch it again") -> DataError:
    """The error of a damaged file, with the error of its reader."""
    return DataError(f"{path}: expected {expected} ({type(error).__name__}: {str(error)[:200]}); {advice}")


def check_images(path: Path, images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The images, refused unless they are uint8 of shape (n, *shape)."""
    if images.dtype != np.uint8 or images.ndim != len(shape) + 1 or images.shape[1:] != shape:
        wanted = ", ".join(map(str, shape))
        raise DataError(
            f"{path}: expected uint8 images of shape (n, {wanted}), received {images.dtype} of shape {images.shape}; "
            f"fetch the file again"
        )
    return images


def check_labels(path: Path, labels: np.ndarray, count: int, num_classes: int) -> np.ndarray:
    """The labels as int64 of shape (count,), refused unless there is one in [0, num_classes) for each image.

    >>> check_labels(Path("labels"), np.array([0, 9, 12]), count=3, num_classes=10)
    Traceback (most recent call last):
    leanbayes.errors.DataError: labels: expected labels from 0 to 9, received 12 at position 2; ...
    """
    if labels.shape != (count,):
        raise DataError(
            f"{path}: expected one label for each of the {count} images, received an array of shape {labels.shape}; "
            f"images and labels are of different parts or one of the files is cut short, fetch both again"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{path}: expected whole-number labels, received {labels.dtype}; fetch the file again")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        raise DataError(
            f"{path}: expected labels from 0 to {num_classes - 1}, received {labels[wrong[0]]} at position {wrong[0]}; "
            f"fetch the file again"
        )
    return labels.astype(np.int64)
