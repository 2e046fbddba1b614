"""Downloads of official files into pooch's cache, checked against their published MD5."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..optional import require


@dataclass(frozen=True)
class Remote:
    """A published file: its name, its MD5, and its URLs, best first."""

    file: str
    md5: str
    urls: tuple[str, ...]


def cache(name: str) -> Path:
    """The cache folder of a data set."""
    require("pooch", "data", f"downloading {name}")
    import pooch

    return Path(pooch.os_cache("leanbayes")) / name.replace("/", "-")


def fetch(remote: Remote, folder: Path, *, download: bool = True) -> Path:
    """The file in `folder`, downloaded unless it is there and whole; it is written atomically."""
    target = folder / remote.file
    if target.is_file() and _md5(target) == remote.md5:
        return target
    if not download:
        raise DataError(f"not in the cache at {target}; {remote.urls[0]} has it, but download=False")
    require("pooch", "data", f"downloading {remote.file}")
    import pooch

    failures = []
    downloader = pooch.HTTPDownloader(timeout=30)
    for url in remote.urls:
        try:
            pooch.retrieve(url, f"md5:{remote.md5}", remote.file, folder, downloader=downloader)
        # requests' errors are OSErrors; a wrong checksum is a ValueError
        except (OSError, ValueError) as error:
            failures.append(f"{url} could not be downloaded to {target}: {_brief(error)}")
        else:
            return target
    raise DataError("; ".join(failures))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _brief(error: Exception) -> str:
    """An error on one line, without the nested messages of requests."""
    import requests

    if isinstance(error, (requests.ConnectionError, requests.Timeout)):
        return f"no connection, are you offline? ({type(error).__name__})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
