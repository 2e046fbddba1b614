"""Structured Bayesian pruning."""

from typing import TYPE_CHECKING, Any

from .config import StructuredPruning

if TYPE_CHECKING:
    from .implementation import prune_channels_ as prune_channels_

__all__ = ["StructuredPruning", "prune_channels_"]


def __getattr__(name: str) -> Any:
    if name == "prune_channels_":
        from .implementation import prune_channels_

        return prune_channels_
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
