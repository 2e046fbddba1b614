"""The inputs of `leanbayes predict`: a file of numbers as the tensor that the network takes."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import batches, data
from ..data.image_folder import SUFFIXES, images_in, read_images
from ..data.npz import read_npy
from ..errors import DataError, LeanBayesWarning
from .networks import imported
from .own_data import is_function

if TYPE_CHECKING:
    from torch import Tensor

    from .saved import Training


FAR = 8.0
"""A typical input that is more standard deviations from the mean of the training data than this gives a warning."""


def inputs_of(name: str, training: Training, *, scaled: bool) -> Any:
    """The inputs of the network from a file, folder or function, scaled as the training data were."""
    if is_function(name):
        return batches.accept(imported(name, "inputs", "a function without arguments that returns inputs"), name=name)
    path = Path(name)
    known = training.prepared_by
    if known is None or scaled:
        if training.mean is None and not scaled:
            raise DataError(
                "the model file does not say how inputs were scaled in training, and predictions for other scales are "
                "wrong; pass --scaled if these are scaled as they were then, or train with leanbayes train"
            )
        channels = None if training.input_shape is None else training.input_shape[0]
        return prepared(read(path, channels), training, path, scaled=scaled)
    x = data.read(path, like=known).test.tensors[0]
    numbers = [not texts for texts in known.categories for _ in range(len(texts) or 1)] or [True] * x.shape[1]
    if (typical := float(x[:, numbers].abs().median())) > FAR:
        warnings.warn(
            f"{path}: a typical input is {typical:.0f} standard deviations from the mean of the training data; are "
            "they in the same units?",
            LeanBayesWarning,
            stacklevel=2,
        )
    return x


def read(path: Path, channels: int | None = None, size: int = 0) -> Tensor:
    """A float tensor (data, ...) from a .npy or .csv file, an image or a folder of images, with pixels from 0 to 1.

    channels: of the images. size: the side of a square that they are resized to.
    """
    try:
        if path.is_dir() or path.suffix.lower() in SUFFIXES:
            return torch.from_numpy(read_images(images_in(path), size=size, channels=channels)).float() / 255
        array = read_npy(path) if path.suffix == ".npy" else _csv(path)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a .npy array or a .csv of numbers ({error})") from error
    if array.ndim < 2 or not array.size:
        why = "; one datum needs [None]" if array.ndim < 2 else ""
        raise DataError(
            f"{path}: expected an array of numbers, (data, ...), received {array.dtype} of shape {array.shape}{why}"
        )
    x = torch.from_numpy(array.astype(np.float32))
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
        raise DataError(f"{path}: expected finite numbers, row {row} (from 0) has others; drop or fill it")
    return x


def prepared(x: Tensor, training: Training, path: Path, *, scaled: bool) -> Tensor:
    """Inputs in the shape and on the scale of the training data, as far as the model file says them."""
    shape = tuple(training.input_shape or x.shape[1:])
    if tuple(x.shape[1:]) != shape:
        if math.prod(x.shape[1:]) != math.prod(shape):
            raise DataError(f"{path}: expected data of shape {shape}, received {tuple(x.shape[1:])}")
        x = x.reshape(-1, *shape)
    if scaled:
        return x
    assert training.mean is not None
    assert training.std is not None
    low, high = float(x.min()), float(x.max())
    if len(shape) == 3 and not -0.01 <= low <= high <= 1.01:  # 0 to 255 would give confident nonsense
        raise DataError(
            f"{path}: expected pixels from 0 to 1, received {low:g} to {high:g}; divide by the largest possible value, "
            "or pass --scaled if they are scaled as in training"
        )
    view = (1, -1, *(1,) * (x.ndim - 2))
    return (x - torch.tensor(training.mean).reshape(view)) / torch.tensor(training.std).reshape(view)


def _csv(path: Path) -> np.ndarray:
    with path.open(encoding="utf-8-sig") as file:
        skip = 0 if _is_numeric(file.readline()) else 1
        file.seek(0)
        return np.loadtxt(file, delimiter=",", skiprows=skip, ndmin=2)


def _is_numeric(line: str) -> bool:
    try:
        [float(cell) for cell in line.split(",")]
    except ValueError:
        return False
    return True
