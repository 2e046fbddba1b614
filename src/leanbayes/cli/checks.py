"""What can be refused before torch is loaded and hours are spent."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ..errors import ConfigError


def counts(**values: int) -> None:
    """Each is 1 or more.

    >>> counts(samples=0)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: --samples: expected a whole number of 1 or more, received 0
    """
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{_option(name)}: expected a whole number of 1 or more, received {value}")


def positive(**values: float) -> None:
    """Each is a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{_option(name)}: expected a finite number above 0, received {value}")


def not_negative(**values: float) -> None:
    """Each is a finite number of 0 or more."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{_option(name)}: expected a finite number of 0 or more, received {value}")


def seed(value: int) -> None:
    """From 0 to 2**63 - 1, as torch takes them."""
    if not 0 <= value < 2**63:
        raise ConfigError(f"--seed: expected a whole number from 0 to 2**63 - 1, received {value}")


def targets(**paths: Path | None) -> None:
    """Each is None or a file that can be written.

    >>> targets(out=Path("no/such/folder/model.safetensors"))
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: --out: expected a folder that exists, received 'no/such/folder'; mkdir -p it first
    """
    for name, path in paths.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            raise ConfigError(
                f"{_option(name)}: expected a folder that exists, received {str(path.parent)!r}; mkdir -p it first"
            )
        if path.is_dir():
            raise ConfigError(f"{_option(name)}: expected a file, received the folder {str(path)!r}; add a file name")
        if not os.access(path.parent, os.W_OK):
            raise ConfigError(f"{_option(name)}: {str(path.parent)!r} may not be written to; choose another folder")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
