"""Where a file may be written: looked at before anything is computed, so that nothing is replaced by mistake."""

from __future__ import annotations

import os
import stat
from typing import Any

from ..container import name_of
from ..errors import ArtifactError

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def check_target(path: Any) -> None:
    """Refuse a path that is no regular file, or that no file can be written to.

    >>> check_target("/dev/null")
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: /dev/null: expected the path of a file to write, received a device, ...
    """
    where = name_of(path)
    target = os.path.realpath(where)
    try:
        kind = stat.S_IFMT(os.stat(target).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFREG
    except OSError as error:  # a name that is too long, a directory that may not be looked into
        raise ArtifactError(
            f"{where[:200]}: expected a path that a file can be written to, received one with {error.strerror!r}; "
            "choose a shorter name or another directory"
        ) from error
    if kind != stat.S_IFREG:
        raise ArtifactError(
            f"{where}: expected the path of a file to write, received {_KINDS.get(kind, 'something else')}, which is "
            "never replaced; add the name of a file, or choose another"
        )
    parent = os.path.dirname(target)
    if os.path.isdir(parent) and not os.access(parent, os.W_OK):
        raise ArtifactError(
            f"{where}: expected a directory that may be written to, received {parent!r}, which may only be read; "
            "choose another directory"
        )
