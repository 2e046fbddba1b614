"""Writing files atomically, and checking where a file may be written."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any

from .errors import ArtifactError

_LONGEST = 200  # bytes of a name that temporary files repeat; most file systems allow 255
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def plain(value: Any) -> Any:
    """A result for JSON: numbers that are not finite become None.

    >>> plain({"loss": float("nan"), "rows": [1.0]})
    {'loss': None, 'rows': [1.0]}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_bytes(path: str | os.PathLike[str], data: bytes, *, keep_previous: bool = False) -> Path:
    """Write a file atomically: a temporary file in the same directory, fsync, rename over the target.

    After a crash, and for readers at any moment, the file has the old or the new content. Symbolic links are followed;
    the permissions of a replaced file are kept. Directories, devices and pipes are refused.

    keep_previous: keep the replaced file beside the new one as `previous(path)`.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = write_bytes(pathlib.Path(folder) / "a.bin", b"abc")
    ...     target.read_bytes(), [p.name for p in pathlib.Path(folder).iterdir()]
    (b'abc', ['a.bin'])
    """
    target = check_directory(path)
    temporary, spare = (target.parent / f"{_stem(target)}.{secrets.token_hex(4)}.tmp" for _ in range(2))
    try:
        with open(temporary, "xb") as file:  # not mkstemp, whose mode 0o600 does not suit shared folders
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            os.chmod(temporary, target.stat().st_mode & 0o777)
            if keep_previous:
                try:
                    os.link(target, spare)
                except OSError:  # a file system without links
                    shutil.copy2(target, spare)
                os.replace(spare, previous(target))
        os.replace(temporary, target)
    except OSError as error:
        raise ArtifactError(
            f"could not write {str(target)!r} ({error.strerror}); what was there before is untouched; "
            f"choose a directory with room that you may write to"
        ) from error
    finally:
        for left in (temporary, spare):
            with contextlib.suppress(OSError):
                left.unlink()
    _sync_directory(target.parent)
    return Path(name_of(path))


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a UTF-8 text file atomically; see `write_bytes`.

    >>> write_text("no/such/directory/report.html", "<p>")
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: expected an existing directory for 'report.html', received ...
    """
    return write_bytes(path, text.encode("utf-8"))


def previous(path: str | os.PathLike[str]) -> Path:
    """The path at which `write_bytes` keeps the replaced file.

    >>> previous("run.ckpt").name
    'run.ckpt.previous'
    """
    target = Path(path)
    return target.with_name(f"{target.name}.previous")


def check_target(path: Any) -> Path:
    """The file that writing to a path creates or replaces, with links followed; refused if it is no ordinary file.

    Call it before a long computation; a missing directory is only refused by `check_directory` and `write_bytes`.

    >>> check_target("/dev/null")
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: /dev/null: expected the path of a file to write, received a device, ...
    """
    where = name_of(path)
    target = Path(os.path.realpath(where))
    try:
        kind = stat.S_IFMT(target.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFREG
    except OSError as error:  # a name that is too long, a directory that may not be searched
        raise ArtifactError(
            f"{where[:200]}: expected a path that a file can be written to, received one with {error.strerror!r}; "
            "choose a shorter name or another directory"
        ) from error
    if kind != stat.S_IFREG:
        raise ArtifactError(
            f"{where}: expected the path of a file to write, received {_KINDS.get(kind, 'something else')}, which is "
            "never replaced; add or choose a file name"
        )
    if target.parent.is_dir() and not os.access(target.parent, os.W_OK):
        raise ArtifactError(
            f"{where}: expected a directory that may be written to, received {str(target.parent)!r}, which may only be "
            "read; choose another directory"
        )
    return target


def check_directory(path: Any) -> Path:
    """`check_target`, and a missing directory is refused too."""
    target = check_target(path)
    if not target.parent.is_dir():
        raise ArtifactError(
            f"expected an existing directory for {target.name!r}, received {str(target.parent)!r}; "
            f"make it first: pathlib.Path({str(target.parent)!r}).mkdir(parents=True)"
        )
    return target


def name_of(path: Any) -> str:
    """A path as text for messages; other types are refused."""
    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise ArtifactError(f"expected the path of a file, received {type(path).__name__}") from error
    if not text or "\0" in text:
        raise ArtifactError(f"expected the path of a file, received {text!r}")
    return text


def writable_kind(path: str | os.PathLike[str]) -> bool:
    """Whether the path is an ordinary file or does not exist.

    >>> writable_kind(os.devnull), writable_kind("."), writable_kind("no such file")
    (False, False, True)
    """
    return os.path.isfile(path) or not os.path.lexists(os.path.realpath(path))


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed writers beside a file; only its single writer may call it.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (pathlib.Path(folder) / ".run.jsonl.0a1b2c3d.tmp").write_text("half a li")
    ...     remove_leftovers(pathlib.Path(folder) / "run.jsonl")
    ...     list(pathlib.Path(folder).iterdir())
    []
    """
    target = Path(os.path.realpath(path))
    # exactly the names of `write_bytes`: ".run.big.0a1b2c3d.tmp" belongs to another file
    leftover = re.compile(rf"{re.escape(_stem(target))}\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):
        for name in os.listdir(target.parent):
            if leftover.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(target.parent / name)


def _stem(target: Path) -> str:
    """The start of the names of a file's temporary files, unique in its directory."""
    encoded = os.fsencode(target.name)
    if len(encoded) <= _LONGEST:
        return f".{target.name}"
    return f".{hashlib.blake2b(encoded, digest_size=16).hexdigest()}"


def _sync_directory(directory: Path) -> None:
    """Sync the directory, so that the rename survives a power failure (not possible on Windows)."""
    with contextlib.suppress(OSError, AttributeError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
