"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from pathlib import Path

from .errors import ArtifactError


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file atomically: a temporary one in the same directory, fsync, rename over the target.

    Whoever reads the path, at any moment and after a crash at any moment, sees the old content or the new one, never
    a mixture. A symbolic link is followed; the permissions of a file that is replaced are kept.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = write_bytes(pathlib.Path(folder) / "a.bin", b"abc")
    ...     target.read_bytes(), [p.name for p in pathlib.Path(folder).iterdir()]
    (b'abc', ['a.bin'])
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ArtifactError(
            f"expected an existing directory for {target.name!r}, received {str(target.parent)!r}; "
            f"make it first: pathlib.Path({str(target.parent)!r}).mkdir(parents=True)"
        )
    if target.is_dir():
        raise ArtifactError(f"expected the path of a file, received the directory {str(target)!r}; add a file name")
    temporary = target.parent / f"{_stem(target)}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:  # not mkstemp: its 0o600 surprises whoever shares a folder
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except OSError as error:
        raise ArtifactError(
            f"could not write {str(target)!r} ({error.strerror}); what was there before is untouched; "
            f"choose a directory with room that you may write to"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(target.parent)
    return Path(path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a UTF-8 text file atomically; see `write_bytes`.

    >>> write_text("no/such/directory/report.html", "<p>")
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: expected an existing directory for 'report.html', received ...
    """
    return write_bytes(path, text.encode("utf-8"))


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers left beside a file; for whoever is its only writer.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (pathlib.Path(folder) / ".run.jsonl.0a1b2c3d.tmp").write_text("half a li")
    ...     remove_leftovers(pathlib.Path(folder) / "run.jsonl")
    ...     list(pathlib.Path(folder).iterdir())
    []
    """
    target = Path(os.path.realpath(path))
    for leftover in target.parent.glob(f"{glob.escape(_stem(target))}.*.tmp"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def _stem(target: Path) -> str:
    return f".{target.name[:100]}"


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut, where the platform can (Windows cannot open directories)."""
    with contextlib.suppress(OSError, AttributeError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
