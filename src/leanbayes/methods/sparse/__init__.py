"""Sparse subspace variational inference, and RigL."""

from .config import Rigl, SparseSubspace

__all__ = ["Rigl", "SparseSubspace"]
