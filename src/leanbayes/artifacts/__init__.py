"""Saving models and loading them again."""

from .load import inspect, load
from .save import save

__all__ = ["inspect", "load", "save"]
