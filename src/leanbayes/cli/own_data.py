"""What --data means: a published data set, a file or folder of the user's own, or a function that returns loaders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from .. import batches, checks, data, feed
from ..data.catalogue import entry
from ..data.dataset import PARTS, DataSet, class_names
from ..data.sources import is_source
from ..errors import ConfigError, DataError
from .networks import first_batch, imported


def open_data(name: str, *, split: int = 0, **reading: Any) -> DataSet:
    """The data set of a name; reading: options of `leanbayes.data.read`, of which None and empty ones are dropped."""
    given = {option: value for option, value in reading.items() if value not in (None, (), "")}
    if is_function(name):
        _refuse(given.keys() - {"task"}, f"{name} is a function, which prepares its data itself")
        return from_function(name, given.get("task"))
    if is_source(name):
        return data.read(name, **given)
    try:
        entry(name)
    except DataError as error:
        raise DataError(f"--data: {name} is no file or folder here; {error}") from None
    _refuse(given.keys() - {"val_fraction"}, f"{name} is a published data set (./{name} is a file or folder of yours)")
    return data.load(name, split=split, **given)


def is_function(name: str) -> bool:
    """Whether a name is package.module:function.

    >>> is_function("mypackage.data:loaders"), is_function("cars.csv")
    (True, False)
    """
    return ":" in name and not Path(name).exists()


def from_function(name: str, task: str | None = None) -> DataSet:
    """The data that a function returns: a mapping of train, val and test, or a tuple of them in this order.

    Each is any kind of labelled data that `leanbayes.batches` accepts; the function scales its inputs itself. A tuple
    of two is train and test.
    """
    found = imported(name, "data", "a function without arguments that returns loaders, {'train': ..., 'test': ...}")
    if isinstance(found, (tuple, list)) and 2 <= len(found) <= 3:
        found = dict(zip(("train", "test") if len(found) == 2 else PARTS, found, strict=True))
    if not isinstance(found, Mapping) or not set(found) <= set(PARTS) or not found:
        raise DataError(
            f"--data: expected {name} to return {{'train': loader, 'val': loader, 'test': loader}} or a tuple of them, "
            f"received {type(found).__name__}"
        )
    parts = {part: _part(found[part], f"{name}, {part}") for part in PARTS if part in found}
    inputs, targets = first_batch(next(iter(parts.values())))
    shape = tuple(batches.first_tensor(inputs).shape[1:])
    several = "segmentation" if targets.ndim > 2 else "classification"
    task = task or ("regression" if targets.is_floating_point() else several)
    names: tuple[str, ...] = ()
    if task in ("classification", "segmentation"):
        known = class_names(next(iter(parts.values())))
        most = max(int(y.max()) for part in parts.values() for _, y in feed.labelled(part))
        names = known or tuple(map(str, range(max(most + 1, 2))))
        if most >= len(names):
            raise DataError(f"{name}: expected labels below {len(names)}, one for each class, received {most}")
    return DataSet(name, task, parts, shape, names, torch.zeros(0), torch.ones(0))  # type: ignore[arg-type]


def loader(part: Any, batch_size: int = 256) -> Any:
    """Batches of a part in its order; a DataLoader of the user is returned unchanged."""
    return part if isinstance(part, DataLoader) else DataLoader(part, batch_size)


def _part(value: Any, where: str) -> Any:
    accepted = batches.accept(value, name=where)
    if isinstance(accepted, tuple):
        return TensorDataset(*accepted)
    if not isinstance(accepted, (DataLoader, torch.utils.data.Dataset)):
        raise DataError(f"{where}: expected a DataLoader, a Dataset or tensors (x, y), received {type(value).__name__}")
    return accepted


def _refuse(given: Any, why: str) -> None:
    if given:
        option = checks.option(sorted(given)[0])
        raise ConfigError(f"{option}: expected a file or folder of your own as --data, {why}; drop {option}")
