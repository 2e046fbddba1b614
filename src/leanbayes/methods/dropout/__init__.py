"""Dropout as approximate inference."""

from .config import Dropout

__all__ = ["Dropout"]
