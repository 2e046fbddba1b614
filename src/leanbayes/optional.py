"""Importing optional packages where they are needed, with an error that names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtraError


def require(package: str, extra: str, purpose: str) -> Any:
    """Import a package and return it; if it cannot be, raise an error that gives the pip command.

    Args:
        package: the name it is imported by.
        extra: the extra of leanbayes that installs it.
        purpose: the option or function that needs it.

    >>> require("math", "plots", "save_html").floor(1.5)
    1
    >>> require("no_such_package", "plots", "save_html")
    Traceback (most recent call last):
    leanbayes.errors.MissingExtraError: save_html: expected the package no_such_package, which is not installed; ...
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing(package, extra, purpose) from error


def missing(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error that `require` raises."""
    return MissingExtraError(
        f"{purpose}: expected the package {package}, which is not installed; pip install 'leanbayes[{extra}]'"
    )
