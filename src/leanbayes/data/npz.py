"""Named arrays of an .npz file, without pickles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import DataError


def read_npz(path: str | os.PathLike[str], keys: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays under `keys`; pickled objects are refused.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(pathlib.Path(folder) / "a.npz", x=np.arange(3))
    ...     read_npz(pathlib.Path(folder) / "a.npz", ["x"])
    {'x': array([0, 1, 2])}
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            present = list(getattr(archive, "files", []))
            arrays = {key: np.asarray(archive[key]) for key in keys if key in present}
    except Exception as error:  # zipfile, zlib, struct and numpy each have their own word for a damaged file
        raise DataError(
            f"{path}: expected a whole .npz file of plain arrays, received a damaged or foreign one "
            f"({type(error).__name__}: {error}); delete it and fetch it again"
        ) from error
    if missing := [key for key in keys if key not in arrays]:
        raise DataError(f"{path}: expected the arrays {', '.join(keys)}, received no {missing[0]}; fetch it again")
    return arrays
