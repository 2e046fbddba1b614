"""`load`: a published data set by name, split and normalised, as tensors."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .. import checks
from ..errors import DataError
from . import catalogue
from .arrays import Arrays
from .dataset import PARTS, DataSet, Part
from .files import Request
from .splits import hold_out


def load(
    name: str = "digits",
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    parts: str | Sequence[str] = PARTS,
    val_fraction: float = 0.1,
    seed: int = 0,
    split: int = 0,
    normalise: bool | DataSet = True,
) -> DataSet:
    """The data set called `name` (see `names`), from `root`, from the folder $LEANBAYES_DATA, or downloaded.

    `val_fraction` of the training data, chosen by `seed`, become the validation part if the set has no official one;
    0 keeps them in training. The test part does not depend on the seed. `split` is the published split of a UCI set.
    `parts` limits what is read. `normalise` subtracts the training mean and divides by the standard deviation, per
    channel or feature (and for regression those of the target); give it a DataSet to use its statistics, as for
    out-of-domain data: ``load("svhn", parts="test", normalise=cifar)``. The not-digits use those of the digits.

    >>> digits = load("digits")
    >>> inputs, targets = digits.train.tensors
    >>> inputs.shape, targets.dtype, abs(float(inputs.mean())) < 1e-5
    (torch.Size([1294, 1, 8, 8]), torch.int64, True)
    >>> load("not-digits/letters")
    DataSet('not-digits/letters', unlabelled: 360 test; inputs (1, 8, 8))
    """
    module = catalogue.entry(name).module
    wanted = _check_parts(parts)
    checks.number("val_fraction", val_fraction, at_least=0, below=1, error=DataError)
    checks.whole_number("seed", seed, at_least=0, at_most=2**32 - 1, error=DataError)
    checks.instance("normalise", normalise, (bool, DataSet), "True, False or a DataSet", error=DataError)
    # the training statistics are needed even if only the test part is
    train = normalise is True or bool({"train", "val"} & wanted)
    request = Request(name, root, download, train=train, test="test" in wanted, split=split)
    arrays: Arrays = importlib.import_module(f".{module}", __package__).build(request)
    if arrays.normalise_like and normalise is True:
        normalise = load(arrays.normalise_like, root=root, download=download, val_fraction=val_fraction, seed=seed)
    arrays = _with_validation(arrays, val_fraction, seed)
    if not wanted & arrays.parts.keys():
        raise DataError(f"{name}: expected parts= of {', '.join(arrays.parts)}, which it has, received {parts!r}")
    return _to_tensors(name, arrays, wanted, normalise)


def _check_parts(parts: str | Sequence[str]) -> set[str]:
    wanted = {parts} if isinstance(parts, str) else set(parts)
    if not wanted or wanted - set(PARTS):
        raise DataError(f"expected parts= of {', '.join(map(repr, PARTS))}, received {parts!r}")
    return wanted


def _with_validation(arrays: Arrays, fraction: float, seed: int) -> Arrays:
    """Cut a validation part from the training part, stratified by class, unless there is one."""
    if fraction == 0 or "val" in arrays.parts or "train" not in arrays.parts:
        return arrays
    inputs, targets = arrays.parts["train"]
    strata = targets if arrays.task == "classification" else np.zeros(len(targets))
    kept, held = hold_out(strata, fraction, seed)
    if not len(kept) or not len(held):
        raise DataError(
            f"val_fraction: expected to leave data on both sides, received {fraction} of {len(targets)}; "
            f"choose another, or 0 for no validation part"
        )
    cut = {"train": (inputs[kept], targets[kept]), "val": (inputs[held], targets[held])}
    return dataclasses.replace(arrays, parts={**arrays.parts, **cut})


def _to_tensors(name: str, arrays: Arrays, wanted: set[str], normalise: bool | DataSet) -> DataSet:
    regression = arrays.task == "regression"
    first = next(iter(arrays.parts.values()))[0]
    mean, std = torch.zeros(first.shape[1]), torch.ones(first.shape[1])
    y_mean, y_std = 0.0, 1.0
    if isinstance(normalise, DataSet):
        mean, std, y_mean, y_std = normalise.mean, normalise.std, normalise.y_mean, normalise.y_std
        if mean.shape != (first.shape[1],):
            raise DataError(
                f"{name}: expected normalise= a data set of {first.shape[1]} channels or features, received "
                f"{normalise.name!r} of {len(mean)}; give one of the same kind, or normalise=False"
            )
    elif normalise:
        inputs, *targets = arrays.parts["train"]
        mean, std = _feature_statistics(inputs) if regression else _pixel_statistics(inputs, arrays.full_scale)
        if regression:
            y_mean, y_std = (float(value) for value in _feature_statistics(targets[0]))
    tensors = {}
    for part in PARTS:
        if part in wanted and part in arrays.parts:
            inputs, *targets = arrays.parts[part]
            x = _features(inputs, mean, std) if regression else _pixels(inputs, arrays.full_scale, mean, std)
            y = [torch.from_numpy((t - y_mean) / y_std).float() if regression else torch.from_numpy(t) for t in targets]
            groups = torch.from_numpy(arrays.groups[part]) if part in arrays.groups else None
            tensors[part] = Part(x, *y, classes=arrays.class_names, groups=groups)
    shape, names = first.shape[1:], arrays.class_names
    return DataSet(name, arrays.task, tensors, shape, names, mean.float(), std.float(), y_mean, y_std)


def _pixel_statistics(images: np.ndarray, full_scale: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, exact, from the counts of the 256 values."""
    values, moments = np.arange(256) / full_scale, []
    for channel in range(images.shape[1]):
        counts = np.bincount(images[:, channel].reshape(-1), minlength=256)
        mean = counts @ values / counts.sum()
        moments.append((mean, math.sqrt(counts @ (values - mean) ** 2 / counts.sum()) or 1.0))
    mean, std = torch.tensor(moments, dtype=torch.float32).T
    return mean, std


def _feature_statistics(features: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per column, float64; 1 for a constant column (its own may be rounding error)."""
    std = features.std(axis=0)
    std = np.where(np.ptp(features, axis=0) == 0, 1.0, std)
    return torch.from_numpy(features.mean(axis=0)), torch.from_numpy(std)


def _pixels(images: np.ndarray, full_scale: int, mean: Tensor, std: Tensor) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(images)).float().div_(full_scale)
    return tensor.sub_(mean[:, None, None]).div_(std[:, None, None])


def _features(features: np.ndarray, mean: Tensor, std: Tensor) -> Tensor:
    return ((torch.from_numpy(features) - mean) / std).float()
