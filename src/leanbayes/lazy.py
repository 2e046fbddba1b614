"""Public names of a package that are imported on first use, so that the command line need not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load lazily.

    modules: the modules of the package, each with the names that it holds, separated by spaces.

    >>> getter, _, names = attach("leanbayes", {"errors": "DataError ConfigError"})
    >>> names, getter("DataError").__name__
    (['ConfigError', 'DataError'], 'DataError')
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted(homes)

    def getter(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return vars(import_module(f"{package}.{homes[name]}"))[name]

    return getter, lambda: public, public
