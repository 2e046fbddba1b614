"""Ensemble model patching and its baselines."""

from typing import TYPE_CHECKING, Any

from .config import DropConnect, Patch, Point

if TYPE_CHECKING:
    from .rules import (
        norm_layer as norm_layer,
        norms as norms,
        norms_and_output as norms_and_output,
        norms_input_output as norms_input_output,
    )

_RULES = ("norm_layer", "norms", "norms_and_output", "norms_input_output")
__all__ = ["DropConnect", "Patch", "Point", *_RULES]


def __getattr__(name: str) -> Any:
    if name in _RULES:  # they look at modules, and so import torch
        from . import rules

        return vars(rules)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
