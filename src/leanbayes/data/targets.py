"""Targets of the user: their task, and labels or scaled numbers from them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, LeanBayesWarning
from .preparation import Preparation
from .tables import MISSING

_FEW, _MANY = 20, 1000  # the most different whole numbers that are classes: in a table or floats, and in integers


@dataclass(frozen=True)
class Targets:
    """The task, and the names of the classes or the mean and standard deviation of the targets."""

    task: str
    classes: tuple[str, ...] = ()
    y_mean: float = 0.0
    y_std: float = 1.0


def task_of(targets: Iterable[np.ndarray], kind: str, path: Path) -> str:
    """Classification for texts and few different whole numbers, otherwise regression."""
    every = np.concatenate([_plain(part, path) for part in targets])
    different = len(np.unique(every))
    if every.dtype.kind in "US":
        if 2 < different > len(every) / 2:
            raise DataError(
                f"{path}: expected classes of several data each, received {different} different texts in {len(every)} "
                f"rows, such as {str(every[0])!r:.40}; is this the target?"
            )
        return "classification"
    most = min(_FEW if kind == "table" or every.dtype.kind == "f" else _MANY, len(every) / 2)
    return "classification" if different <= most and bool((every == np.round(every)).all()) else "regression"


def learned(parts: Mapping[str, Any], task: str, path: Path) -> Targets:
    """The classes of all parts, or the scale of the training part."""
    values = {name: _plain(part, path) for name, part in parts.items()}
    every = np.concatenate(list(values.values()))
    if task == "regression":
        train = _floats(values["train"], path)
        std = float(train.std())
        if np.ptp(train) == 0 or not np.isfinite(std):
            raise DataError(f"{path}: expected targets that differ, received {train[0]:g} in every row of training")
        return Targets(task, y_mean=float(train.mean()), y_std=std)
    if every.dtype.kind == "f" and (broken := every[every != np.round(every)]).size:
        raise DataError(f"{path}: expected texts or whole numbers as classes, received {broken[0]:g}")
    classes = _names(every)
    if len(classes) < 2:
        raise DataError(
            f"{path}: expected at least two classes, received only {classes[0]!r}; there is nothing to learn"
        )
    if unseen := sorted(set(classes) - set(_names(values["train"]))):
        warnings.warn(
            f"{path}: {len(unseen)} of {len(classes)} classes have no training data, such as {unseen[0]!r}",
            LeanBayesWarning,
            stacklevel=3,
        )
    return Targets(task, classes)


def encoded(targets: np.ndarray, known: Preparation, where: str) -> np.ndarray:
    """Labels (n,) int64, or scaled numbers (n, 1) float32."""
    values = _plain(targets, Path(where))
    if known.task == "regression":
        return ((_floats(values, Path(where))[:, None] - known.y_mean) / known.y_std).astype(np.float32)
    names = _texts(values)
    places = {name: at for at, name in enumerate(known.classes)}
    if unknown := next((name for name in names if name not in places), None):
        shown = ", ".join(known.classes[:8]) + (", ..." if len(known.classes) > 8 else "")
        raise DataError(f"{where}: expected the classes of training, {shown}, received {unknown!r:.40}")
    return np.array([places[name] for name in names], dtype=np.int64)


def _plain(targets: np.ndarray, path: Path) -> np.ndarray:
    """Targets as numbers if all cells are, otherwise as texts; missing ones are refused."""
    if targets.dtype == object:
        cells = targets.astype(str)
        empty = np.array([cell.lower() in MISSING for cell in cells])
        if empty.any():
            raise DataError(
                f"{path}: expected a target in every row, {int(empty.sum())} of {len(cells)} have none; drop these rows"
            )
        try:
            targets = cells.astype(np.float64)
        except ValueError:
            return cells
        if np.abs(targets).max() > 2**53 and all(cell.lstrip("+-").isdigit() for cell in cells):
            return cells  # floats cannot distinguish neighbouring whole numbers of this size
    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        raise DataError(f"{path}: expected finite targets, received {targets[~np.isfinite(targets)][0]}")
    return targets.astype(np.int64) if targets.dtype.kind == "b" else targets


def _floats(values: np.ndarray, path: Path) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except ValueError:
        raise DataError(f"{path}: expected numbers as targets, received the text {str(values[0])!r:.40}") from None


def _names(values: np.ndarray) -> tuple[str, ...]:
    """The different classes in order, numbers by size, texts alphabetically."""
    return tuple(_texts(np.unique(values)))


def _texts(values: np.ndarray) -> list[str]:
    return [str(v) for v in values.tolist()] if values.dtype.kind in "USiu" else [f"{v:.0f}" for v in values.tolist()]
