"""The inputs of `leanbayes predict`: a file of numbers as the tensor that the network takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..data.npz import read_npy
from ..errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from .saved import Training


def read(path: Path) -> Tensor:
    """A float tensor (data, ...) from .npy or .csv."""
    try:
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
    """The inputs in the shape and the scale of the training data, as far as those are known."""
    shape = tuple(training.input_shape or x.shape[1:])
    if tuple(x.shape[1:]) != shape:
        if math.prod(x.shape[1:]) != math.prod(shape):
            raise DataError(f"{path}: expected data of shape {shape}, received {tuple(x.shape[1:])}")
        x = x.reshape(-1, *shape)
    if scaled or training.mean is None or training.std is None:
        return x
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
