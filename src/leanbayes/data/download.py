"""Official files from their official places, checked against their published MD5, kept in pooch's cache."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..optional import require


@dataclass(frozen=True)
class Remote:
    """A published file: its name, its MD5, and where it can be had, best place first."""

    file: str
    md5: str
    urls: tuple[str, ...]


def cache(name: str) -> Path:
    """The folder that downloads of a data set are kept in."""
    require("pooch", "data", f"downloading {name}")
    import pooch

    return Path(pooch.os_cache("leanbayes")) / name.replace("/", "-")


def fetch(remote: Remote, folder: Path, *, download: bool = True) -> Path:
    """The file in `folder`, downloaded if it is not there or not whole; it appears there complete or not at all."""
    target = folder / remote.file
    if target.is_file() and _md5(target) == remote.md5:
        return target
    if not download:
        raise DataError(f"not in the cache at {target}; {remote.urls[0]} has it, but download=False")
    require("pooch", "data", f"downloading {remote.file}")
    import pooch

    failures = []
    for url in remote.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"md5:{remote.md5}",
                fname=remote.file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=30),
            )
        # requests' errors are OSErrors; pooch reports a checksum that differs as a ValueError with both sums in it.
        except (OSError, ValueError) as error:
            failures.append(f"{url} could not be downloaded to {target}: {_brief(error)}")
        else:
            return target
    raise DataError("; ".join(failures))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _brief(error: Exception) -> str:
    """What went wrong, on a line: requests nests three libraries' messages where one word would do."""
    import requests

    if isinstance(error, (requests.ConnectionError, requests.Timeout)):
        return f"no connection, are you offline? ({type(error).__name__})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
