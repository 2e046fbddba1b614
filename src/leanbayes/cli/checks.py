"""Checks of options before torch is loaded, so that a wrong one is refused at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .. import checks
from ..errors import ConfigError


def each(check: Callable[[str, Any], Any], **values: float | None) -> None:
    """Check each option that is given, under its name on the command line."""
    for name, value in values.items():
        if value is not None:
            check(checks.option(name), value)


counts = partial(each, checks.whole_number)
positive = partial(each, partial(checks.number, above=0))
not_negative = partial(each, partial(checks.number, at_least=0))
fractions = partial(each, partial(checks.number, above=0, below=1))


def seed(value: int) -> None:
    """Refuse a seed that is not a whole number from 0 to 2**63 - 1."""
    checks.whole_number("--seed", value, at_least=0, at_most=2**63 - 1)


def targets(**paths: Path | None) -> None:
    """Refuse paths, unless they are None, at which no file can be written.

    >>> targets(out=Path("no/such/folder/model.safetensors"))
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: --out: expected a folder that exists, received 'no/such/folder'; mkdir -p it first
    """
    for name, path in ((checks.option(name), path) for name, path in paths.items() if path is not None):
        if not path.parent.is_dir():
            raise ConfigError(
                f"{name}: expected a folder that exists, received {str(path.parent)!r}; mkdir -p it first"
            )
        if path.is_dir():
            raise ConfigError(f"{name}: expected a file, received the folder {str(path)!r}; add a file name")
        if not os.access(path.parent, os.W_OK):
            raise ConfigError(f"{name}: {str(path.parent)!r} may not be written to; choose another folder")


def continued(path: Path | None, otherwise: str) -> str:
    """The advice after an interruption: the same command continues if there is a file to continue from."""
    return f"; {otherwise} can be continued" if path is None else f"; the same command continues from {path}"
