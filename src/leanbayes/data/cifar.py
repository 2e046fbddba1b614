"""CIFAR-10 and CIFAR-100 as published: pickled batches, in their folder or still in the .tar.gz."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from ..errors import DataError
from .arrays import Arrays, check_images, check_labels
from .download import Remote
from .files import Request, find
from .limits import Bounded, open_packed, read_whole
from .pickles import read_pickle

_MOST = 192 * 2**20  # bytes of a batch; the largest, CIFAR-100's training part, has 155 MB
_MOST_UNPACKED, _MOST_MEMBERS = 256 * 2**20, 100  # of an archive; both published ones have 186 MB and 8 or fewer files
_URL = "https://www.cs.toronto.edu/~kriz/"


def read_cifar(
    path: str | os.PathLike[str], files: Sequence[str], *, labels: str = "labels", num_classes: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) int64 of the named batches, in that order.

    `path` is the folder that holds the batches or the published .tar.gz; `labels` is the key they are stored under.
    The pickles are read with a restricted unpickler that can run nothing.

    >>> import pathlib, pickle, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [3, 9]}
    ...     _ = (pathlib.Path(folder) / "test_batch").write_bytes(pickle.dumps(batch))
    ...     images, targets = read_cifar(folder, ["test_batch"])
    >>> images.shape, targets
    ((2, 3, 32, 32), array([3, 9]))
    """
    batches = [_batch(where, content, labels, num_classes) for where, content in _contents(Path(path), files)]
    return np.concatenate([images for images, _ in batches]), np.concatenate([targets for _, targets in batches])


def build(request: Request) -> Arrays:
    """CIFAR-10 or CIFAR-100 (fine labels): images (n, 3, 32, 32), labels (n,)."""
    facts = request.facts
    archive, classes = facts["archive"], facts["num_classes"]
    paths = [f"{facts['folder']}/{facts[request.parts[0]][0]}", archive]
    found = find(request, paths, Remote(archive, facts["md5"], (_URL + archive,)))
    source = found if found.name == archive else found.parent
    parts = {
        part: read_cifar(source, facts[part], labels=facts["labels"], num_classes=classes) for part in request.parts
    }
    ((where, content),) = _contents(source, [facts["meta"]])
    names = read_pickle(content, where).get(facts["names"])
    if not (isinstance(names, list) and len(names) == classes and all(type(n) is str for n in names)):
        raise DataError(f"{where}: expected {classes} class names under {facts['names']!r}, received others")
    return Arrays("classification", parts, tuple(names))


def _batch(where: Path, content: bytes, key: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(content, where)
    if missing := [k for k in ("data", key) if k not in batch]:
        raise DataError(f"{where}: expected the keys 'data' and {key!r}, received no {missing[0]!r}")
    data, labels = batch["data"], batch[key]
    if not isinstance(data, np.ndarray):
        raise DataError(f"{where}: expected an array under 'data', received {type(data).__name__}")
    images = check_images(where, data, (3072,)).reshape(-1, 3, 32, 32)
    return images, check_labels(where, _whole_numbers(where, labels), len(images), num_classes)


def _whole_numbers(where: Path, labels: Any) -> np.ndarray:
    # Checked one by one before numpy sees them: np.asarray walks nested lists, and these come from anywhere.
    if isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels):
        return np.asarray(labels, np.int64)
    if isinstance(labels, np.ndarray):
        return labels
    raise DataError(f"{where}: expected a list of whole numbers as labels, received {type(labels).__name__} of others")


def _contents(source: Path, files: Sequence[str]) -> list[tuple[Path, bytes]]:
    """The path (for messages) and content of each file."""
    try:
        if source.is_dir() or not source.exists():
            found = {name: read_whole(source / name, _MOST) for name in files}
        else:
            found = _from_archive(source, files)
    except OSError as error:
        if not isinstance(error, gzip.BadGzipFile):
            raise DataError(
                f"{source}: expected the files {', '.join(files)}, received {error}; fetch the data set again"
            ) from error
        raise _damaged(source, error) from error
    except Exception as error:  # tarfile and zlib let whatever a damaged byte leads to through
        raise _damaged(source, error) from error
    if missing := [name for name in files if name not in found]:
        raise DataError(f"{source}: expected an archive that holds {missing[0]}, received one without; fetch it again")
    return [(source / name, found[name]) for name in files]


def _damaged(source: Path, error: Exception) -> DataError:
    return DataError(
        f"{source}: expected a whole .tar.gz, received a damaged one ({str(error)[:200]}); delete it and fetch it again"
    )


def _from_archive(source: Path, files: Sequence[str]) -> dict[str, bytes]:
    """Read members in one pass, without unpacking to disk."""
    found = {}
    with (
        open_packed(source, _MOST_UNPACKED) as (file, most),
        tarfile.open(fileobj=cast(IO[bytes], Bounded(file, most)), mode="r|") as archive,
    ):
        for count, member in enumerate(archive):
            if count >= _MOST_MEMBERS:
                raise ValueError(f"more than {_MOST_MEMBERS} members")
            name = Path(member.name).name
            if not member.isreg() or name not in files or name in found:
                continue
            # A sparse member may claim any size, and zeros are made for what it does not store.
            if member.issparse() or not 0 <= member.size <= _MOST:
                raise ValueError(f"{name} of {member.size:,} bytes")
            if (content := archive.extractfile(member)) is not None:
                found[name] = content.read()
    return found
