"""Variance networks."""

from .config import Variance, magnitudes

__all__ = ["Variance", "magnitudes"]
