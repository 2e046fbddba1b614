"""Saving models and loading them again."""

from .loading import inspect, load
from .saving import save

__all__ = ["inspect", "load", "save"]
