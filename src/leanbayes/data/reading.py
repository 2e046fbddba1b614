"""`read`: data of your own from a file or folder, split and scaled as tensors; new data are prepared the same way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from .. import checks
from ..errors import DataError
from . import sources
from .dataset import DataSet, Part
from .preparation import Preparation
from .sources import Raw
from .splits import hold_out
from .tables import Table, categories_of, encode
from .targets import Targets, encoded, learned, task_of


def read(
    source: str | os.PathLike[str],
    target: str | None = None,
    *,
    task: Literal["classification", "regression"] | None = None,
    drop: Iterable[str] = (),
    missing: Literal["error", "fill"] = "error",
    size: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    seed: int = 0,
    like: DataSet | Preparation | None = None,
) -> DataSet:
    """Data of your own as a `DataSet`: split into train, val and test, inputs and regression targets scaled.

    source: a .csv or .parquet table, a .npz file (arrays x and y, or x_train, y_train, x_test, ...), a .npy array of
        inputs, or a folder with a folder of images for each class (or such folders in train, val and test).
    target: the column of a table that is predicted; the name of the array in a .npz; the .npy file of the targets.
    task: by default classification for texts and few whole numbers, otherwise regression.
    drop: columns of a table to leave out. Others are numbers, or texts of which each becomes an input of 0 or 1.
    missing: "error", or "fill": an empty number becomes the mean, an empty or unknown text none of the known ones.
    size: resize images to size x size pixels; 0 keeps their size.
    val_fraction, test_fraction: held out if the source has no such part, by ``seed``, stratified by class.
    like: prepare all data as these were, as the part "test": the same columns, categories, scaling and classes. For
        new data, which need no targets.

    The scaling is learned from the training part. Missing values, unknown texts, and columns and image sizes that
    differ are errors with their place.

    >>> import pathlib, tempfile
    >>> rows = [f"{i},{'red' if i % 3 else 'blue'},{2 * i}" for i in range(50)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "cars.csv")
    ...     _ = path.write_text("age,colour,price\\n" + "\\n".join(rows))
    ...     cars = read(path, target="price", task="regression")
    >>> cars
    DataSet('cars.csv', regression: 35 train, 5 val, 10 test; inputs (3,))
    >>> cars.preparation.columns, cars.preparation.categories
    (('age', 'colour'), ((), ('blue', 'red')))
    """
    path = checks.path("source", source, error=DataError)
    a_name = partial(checks.instance, kind=str, what="the name of a column", error=DataError)
    dropped = tuple(checks.iterable_of("drop", drop, "columns", a_name, error=DataError))
    checks.one_of("missing", missing, ("error", "fill"), error=DataError)
    checks.one_of("task", task, ("classification", "regression", None), error=DataError)
    size = checks.whole_number("size", size, at_least=0, error=DataError)
    fractions = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    for name, value in fractions.items():
        checks.number(name, value, at_least=0, below=1, error=DataError)
    if like is not None:
        known = like.preparation if isinstance(like, DataSet) else like
        if not isinstance(known, Preparation):
            raise DataError("like: expected data that data.read read, or a Preparation, received others")
        raw = sources.read(path, known.target or target, known.size, known)
        return _prepared(path.name, {"test": raw.joined()}, known)
    raw = sources.read(path, target, size, None)
    if any(part.targets is None for part in raw.parts.values()):
        raise DataError(f"{path}: expected targets to learn from, received none; {raw.advice}")
    known_task = task or task_of([part.targets for part in raw.parts.values()], raw.kind, path)  # type: ignore[misc]
    parts = _split(raw, path, known_task, val_fraction, test_fraction, checks.seed(seed, error=DataError))
    found = learned({name: part.targets for name, part in parts.items()}, known_task, path)
    return _prepared(path.name, parts, _learn(parts["train"], raw, found, dropped, missing, size, path))


def prepare(inputs: Table | np.ndarray, known: Preparation, name: str = "inputs") -> torch.Tensor:
    """Inputs in memory, a table of texts or an array (data, ...), prepared as those of training were.

    >>> known = Preparation("array", "regression", input_shape=(2,), mean=(1.0, 0.0), std=(2.0, 1.0))
    >>> prepare(np.array([[3.0, 4.0]]), known)
    tensor([[1., 4.]])
    """
    kind = "table" if isinstance(inputs, Table) else "array"
    raw = sources.like(Raw(kind, {"test": sources.Rows(inputs, None)}), known, Path(name))
    return _prepared(name, raw.parts, known).test.tensors[0]


def _split(
    raw: Raw, path: Path, task: str, val_fraction: float, test_fraction: float, seed: int
) -> dict[str, sources.Rows]:
    """Train, val and test: those of the source, the others cut from its training part."""
    parts = dict(raw.parts)
    for name, fraction in (("test", test_fraction), ("val", val_fraction)):
        if name in parts or fraction == 0:
            continue
        whole = parts["train"]
        assert whole.targets is not None
        share = fraction if name == "test" or "test" in raw.parts else fraction / (1 - test_fraction)
        strata = whole.targets.astype(str) if task == "classification" else np.zeros(len(whole))
        kept, held = hold_out(strata, min(share, 1.0), seed % 2**32)
        if not len(kept) or not len(held):
            raise DataError(
                f"{path}: expected enough data to hold {fraction:g} out as {name}, received {len(whole)}; "
                f"collect more, or set {name}_fraction to 0"
            )
        parts["train"], parts[name] = whole.rows(kept), whole.rows(held)
    return {name: parts[name] for name in ("train", "val", "test") if name in parts}


def _learn(
    train: sources.Rows, raw: Raw, truth: Targets, drop: tuple[str, ...], missing: str, size: int, path: Path
) -> Preparation:
    """The preparation that the training part suggests: columns, categories and scales."""
    fields: dict[str, Any] = {**vars(truth), "source": raw.kind, "target": raw.target, "size": size}
    if raw.kind != "images" and size:
        raise DataError(f"size: expected a folder of images, {path} is none; leave size out")
    if raw.kind != "table" and drop:
        raise DataError(f"drop: expected a table, {path} is none; leave drop out")
    if isinstance(train.inputs, Table):
        if unknown := [name for name in drop if name not in train.inputs.columns]:
            raise DataError(f"drop: expected columns of {path}, received {unknown[0]!r}")
        names = [name for name in train.inputs.columns if name not in (*drop, raw.target)]
        if not names:
            raise DataError(f"{path}: expected at least one column beside the target, received none")
        categories = tuple(categories_of(train.inputs, name) for name in names)
        features = sum(len(texts) or 1 for texts in categories)
        columns: dict[str, Any] = {"columns": tuple(names), "categories": categories, "drop": drop, "missing": missing}
        unscaled = Preparation(
            **fields, **columns, input_shape=(features,), mean=(0.0,) * features, std=(1.0,) * features
        )
        values = encode(train.inputs, unscaled)
        is_number = [not texts for texts in categories for _ in range(len(texts) or 1)]
        fields |= columns
    else:
        values = sources.floats(train.inputs, raw.full_scale)
        is_number = [True] * values.shape[1]
        fields |= {"full_scale": raw.full_scale, "missing": missing}
        wrong = ~np.isfinite(values) if missing != "fill" or values.ndim > 2 else np.isinf(values)
        if wrong.any():
            row = int(wrong.reshape(len(values), -1).any(1).argmax())
            raise DataError(f"{path}: expected finite numbers, row {row} of the training part has others; drop or fill")
    mean, std = _scale(values, path)
    mean, std = np.where(is_number, mean, 0.0), np.where(is_number, std, 1.0)
    return Preparation(**fields, input_shape=values.shape[1:], mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def _scale(values: np.ndarray, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation by channel or feature, ignoring NaN; 1 for a constant."""
    over = (0, *range(2, values.ndim))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = np.nanmean(values, axis=over), np.nanstd(values, axis=over)
        constant = np.nanmax(values, axis=over) == np.nanmin(values, axis=over)
    std = np.where(constant | (std < 2.0**-126), 1.0, std)
    if not np.isfinite(mean).all() or not np.isfinite(std).all() or max(np.abs(mean).max(), std.max()) > 2.0**127:
        at = int((~np.isfinite(std) | (std > 2.0**127)).argmax())
        raise DataError(f"{path}: expected numbers within a float32, input {at} has larger ones; take their logarithm")
    return mean, std


def _prepared(name: str, parts: Mapping[str, sources.Rows], known: Preparation) -> DataSet:
    """The parts as tensors: inputs scaled, labels as numbers."""
    made = {}
    for part, rows in parts.items():
        if isinstance(rows.inputs, Table):
            values = encode(rows.inputs, known)
        else:
            values = sources.floats(rows.inputs, known.full_scale)
        view = (1, -1, *(1,) * (values.ndim - 2))
        scaled = (values - np.array(known.mean).reshape(view)) / np.array(known.std).reshape(view)
        if known.missing == "fill":
            scaled = np.nan_to_num(scaled, nan=0.0)
        with np.errstate(over="ignore"):  # checked below
            tensors = [torch.from_numpy(scaled.astype(np.float32))]
        if not bool(torch.isfinite(tensors[0]).all()):
            row = int((~torch.isfinite(tensors[0].flatten(1)).all(1)).nonzero()[0])
            raise DataError(f"{name}: expected finite numbers, row {row} (from 0) has others; drop or fill it")
        if rows.targets is not None:
            tensors.append(torch.from_numpy(encoded(rows.targets, known, name)))
        made[part] = Part(*tensors, classes=known.classes)
    labelled = all(rows.targets is not None for rows in parts.values())
    mean, std = torch.tensor(known.mean), torch.tensor(known.std)
    return DataSet(
        name, known.task if labelled else "unlabelled", made, known.input_shape, known.classes, mean, std,
        known.y_mean, known.y_std, known,
    )  # fmt: skip
