"""Variational dropout."""

from .config import VariationalDropout

__all__ = ["VariationalDropout"]
