"""Variance networks."""

from .config import Variance

__all__ = ["Variance"]
