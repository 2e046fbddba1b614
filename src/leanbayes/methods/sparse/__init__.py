"""Sparse subspace variational inference, and RigL."""

from .rigl import Rigl
from .subspace import SparseSubspace

__all__ = ["Rigl", "SparseSubspace"]
