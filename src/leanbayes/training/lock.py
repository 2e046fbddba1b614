"""A lock file beside a checkpoint, held through the operating system, so that one run at a time writes it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import LeanBayesWarning, TrainingError
from ..files import writable_kind

_mine: set[tuple[int, str]] = set()  # record locks do not stop a second run in the same process
_guard = threading.Lock()


@contextlib.contextmanager
def held(path: str | os.PathLike[str]) -> Iterator[None]:
    """Run a block as the only writer of a file; if another process writes it, a TrainingError names the process.

    The operating system releases the lock when the process ends, however it ends, so a file left by a killed run is
    taken over at once. Most network file systems lock for all hosts. Not all do, so there is a warning if the file was
    left by a run on another host.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, held(folder + "/run.ckpt"):
    ...     os.listdir(folder)
    ['run.ckpt.lock']
    """
    target = os.path.realpath(path)
    file, key = Path(f"{target}.lock"), (os.getpid(), target)
    with _guard:
        if key in _mine:
            raise _taken(path, "this process itself")
        handle = _open(path, file)
        _mine.add(key)
    try:
        yield
    finally:
        with _guard:
            _mine.discard(key)
            with contextlib.suppress(OSError):
                file.unlink()  # while it is locked: a process that opened it meanwhile looks again (`_same`)
            handle.close()


def _open(path: Any, file: Path) -> BinaryIO:
    while True:
        try:
            if not writable_kind(file):
                raise FileExistsError(errno.EEXIST, "it is no ordinary file")
            handle = open(file, "a+b")  # noqa: SIM115
        except OSError as error:
            raise TrainingError(
                f"{path}: expected a directory to write to, but {str(file)!r} cannot be made ({error.strerror}); "
                "choose another path"
            ) from error
        handle.seek(0)
        host, owner = _who(handle.read(1000))
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                handle.close()
                raise _taken(path, owner) from error
            warnings.warn(
                f"{path}: this file system has no locks ({error.strerror}); make sure that no other run writes there",
                LeanBayesWarning,
                stacklevel=2,
            )
        if not _same(handle, file):
            handle.close()
            continue
        if owner and host != socket.gethostname():
            warnings.warn(
                f"{path}: left locked by {owner}, and taken over, since the file system says that it has ended; make "
                "sure that it has",
                LeanBayesWarning,
                stacklevel=2,
            )
        handle.truncate(0)
        here = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):  # on a full disk the lock still holds
            handle.write(json.dumps(here).encode())
            handle.flush()
        return handle


def _same(handle: BinaryIO, file: Path) -> bool:
    """Whether the opened file is still the one at the path; an owner that ended has removed it."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(file))
    except OSError:
        return False


def _who(content: bytes) -> tuple[str, str]:
    """The host and the description of the owner in a lock file; empty if it has none."""
    try:
        found = json.loads(content)
        return str(found["host"]), f"process {int(found['pid'])} on host {found['host']!r} since {found['since']}"
    except (ValueError, TypeError, KeyError):
        return "", ""


def _taken(path: Any, owner: str) -> TrainingError:
    return TrainingError(
        f"{path}: expected no other run on this checkpoint, but {owner or 'another process'} is writing it; wait for "
        "it or stop it, or pass another path"
    )


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: BinaryIO) -> None:
        handle.seek(1 << 30)  # behind the content, which others must be able to read
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: BinaryIO) -> None:
        # not flock: forked workers of a loader would inherit it, and keep it for a while when the run is killed
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
