"""The registry of methods: those in `leanbayes.methods` and those of other packages. No torch here.

A package brings a method of its own with an entry point in the group ``leanbayes.methods`` that names the config::

    [project.entry-points."leanbayes.methods"]
    Toy = "toy.config:Toy"
"""

from __future__ import annotations

import pkgutil
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

from .config import configurable
from .errors import LeanBayesWarning
from .method import Method

GROUP = "leanbayes.methods"
M = TypeVar("M", bound="type[Method]")
_METHODS: dict[str, type[Method]] = {}
_discovered: set[str] = set()


def register(cls: M) -> M:
    """Make a method known under its class name, and its config loadable from JSON."""
    configurable(cls)
    _METHODS[cls.__name__] = cls
    return cls


def methods() -> dict[str, type[Method]]:
    """Every registered method by name, in alphabetical order.

    >>> methods()["MeanField"]
    <class 'leanbayes.methods.mean_field.config.MeanField'>
    """
    _discover()
    return dict(sorted(_METHODS.items()))


def _discover() -> None:
    """Import every config once; one of another package that cannot be imported is left out, with a warning."""
    if GROUP in _discovered:
        return
    _discovered.add(GROUP)
    for module in pkgutil.iter_modules(import_module(GROUP).__path__):
        import_module(f"{GROUP}.{module.name}")
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
            if not (isinstance(found, type) and issubclass(found, Method)):
                raise TypeError(f"expected a subclass of leanbayes.method.Method, received {found!r}")
            register(found)
        except Exception as error:  # whatever another package may raise
            warnings.warn(
                f"the method {entry.name!r} ({entry.value}) is left out: {type(error).__name__}: {error}; mend or "
                "uninstall the package that brings it",
                LeanBayesWarning,
                stacklevel=3,
            )
