"""Mean-field variational inference."""

from .config import MeanField, fresh

__all__ = ["MeanField", "fresh"]
