"""Finding the files of a data set: under `root`, under $LEANBAYES_DATA, or by download."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from .catalogue import entry
from .download import Remote, cache, fetch

VARIABLE = "LEANBAYES_DATA"


@dataclass(frozen=True)
class Request:
    """The arguments of `load` that readers need; `train` and `test` say which parts to read."""

    name: str
    root: str | os.PathLike[str] | None = None
    download: bool = True
    train: bool = True
    test: bool = True
    split: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts to read."""
        return ("train",) * self.train + ("test",) * self.test

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the files in the catalogue."""
        return entry(self.name).facts


def find(request: Request, paths: Sequence[str], remote: Remote | None) -> Path:
    """The first of `paths` that exists under the root, or else the published file in the cache."""
    return find_local(request, paths) or obtain(request, paths, remote)


def find_local(request: Request, paths: Sequence[str]) -> Path | None:
    """The first of `paths` that exists under the root, or None."""
    return next((path for path in _candidates(request, paths) if path.is_file()), None)


def obtain(request: Request, paths: Sequence[str], remote: Remote | None) -> Path:
    """The published file, from the cache or the network; `paths` are named in the message if there is none."""
    if remote is None:
        raise DataError(_missing(request, paths, "it cannot be downloaded: there is no public copy"))
    try:
        return fetch(remote, cache(request.name), download=request.download)
    except DataError as error:
        raise DataError(_missing(request, paths, str(error))) from error


def _root(request: Request) -> tuple[Path | None, bool]:
    """The folder to look in, and whether the caller gave it."""
    given = request.root if request.root is not None else os.environ.get(VARIABLE) or None
    if given is None:
        return None, False
    root, source = Path(given).expanduser(), "root" if request.root is not None else VARIABLE
    if not root.is_dir():
        raise DataError(f"{source}: expected a folder of data sets, received {str(given)!r}, which is not a directory")
    return root, request.root is not None


def _candidates(request: Request, paths: Sequence[str]) -> list[Path]:
    root, named = _root(request)
    if root is None:
        return []
    # The root of a call may be the folder of the files itself. A shared one may not, since MNIST, Fashion-MNIST and
    # KMNIST use the same file names.
    bare = [Path(path).name for path in paths] if named else []
    return list(dict.fromkeys(root / path for path in [*paths, *bare]))


def _missing(request: Request, paths: Sequence[str], reason: str) -> str:
    looked = [str(path) for path in _candidates(request, paths)]
    lines = [
        f"{request.name}: expected the file {Path(paths[0]).name}, received none",
        f"looked at: {', '.join(looked) or f'nothing, since {VARIABLE} is not set and no root= was given'}",
        f"then: {reason}",
        f"next: put it at FOLDER/{paths[0]} and set {VARIABLE}=FOLDER or pass root='FOLDER'; "
        f"or use the embedded data, load('digits')",
    ]
    if Path(paths[0]).name.startswith("train"):
        lines.append(
            f"with only the test part at hand, beside a set you trained on: "
            f"load({request.name!r}, parts='test', normalise=trained_on)"
        )
    return "\n  ".join(lines)
