"""What can be refused before torch is loaded and hours are spent."""

from __future__ import annotations

import os
from pathlib import Path

from .. import checks
from ..errors import ConfigError


def counts(**values: int | None) -> None:
    """Each that is given is at least 1.

    >>> counts(samples=0)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: --samples: expected a whole number of at least 1, received 0
    """
    for name, value in values.items():
        if value is not None:
            checks.whole_number(checks.option(name), value)


def positive(**values: float | None) -> None:
    """Each that is given is a finite number above 0."""
    for name, value in values.items():
        if value is not None:
            checks.number(checks.option(name), value, above=0)


def not_negative(**values: float) -> None:
    """Each is a finite number of at least 0."""
    for name, value in values.items():
        checks.number(checks.option(name), value, at_least=0)


def fractions(**values: float | None) -> None:
    """Each that is given lies between 0 and 1."""
    for name, value in values.items():
        if value is not None:
            checks.number(checks.option(name), value, above=0, below=1)


def seed(value: int) -> None:
    """From 0 to 2**63 - 1, as torch takes them."""
    checks.whole_number("--seed", value, at_least=0, at_most=2**63 - 1)


def targets(**paths: Path | None) -> None:
    """Each is None or a file that can be written.

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
    """What to do after an interruption: the same command again, or next time with an option."""
    return f"; {otherwise} can be continued" if path is None else f"; the same command continues from {path}"
