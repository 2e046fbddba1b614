"""Structured Bayesian pruning."""

from .config import StructuredPruning, prune_channels_

__all__ = ["StructuredPruning", "prune_channels_"]
