"""Methods announce themselves here; the converter, the command line and the contract tests read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .config import configurable

if TYPE_CHECKING:
    from .method import Method

M = TypeVar("M", bound="type[Method]")
_METHODS: dict[str, type[Method]] = {}


def register(cls: M) -> M:
    """Make a method known under its class name, and its config loadable from JSON."""
    configurable(cls)
    _METHODS[cls.__name__] = cls
    return cls


def methods() -> dict[str, type[Method]]:
    """Every registered method by name.

    >>> methods()["MeanField"]
    <class 'leanbayes.methods.mean_field.config.MeanField'>
    """
    from . import methods as _room  # noqa: F401  (importing the room registers what is in it)

    return dict(_METHODS)
