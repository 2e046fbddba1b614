"""Mean-field variational inference."""

from .config import MeanField

__all__ = ["MeanField"]
