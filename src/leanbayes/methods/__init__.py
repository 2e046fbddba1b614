"""The methods: one algorithm a file. Importing this room registers them all, without importing torch."""

from .base import Method
from .dropout import Dropout
from .ensemble import Ensemble
from .mean_field import MeanField
from .patch import DropConnect, Patch, Point
from .rigl import Rigl
from .sparse_subspace import SparseSubspace
from .structured_pruning import StructuredPruning
from .variance import Variance
from .variational_dropout import VariationalDropout

__all__ = [
    "DropConnect",
    "Dropout",
    "Ensemble",
    "MeanField",
    "Method",
    "Patch",
    "Point",
    "Rigl",
    "SparseSubspace",
    "StructuredPruning",
    "Variance",
    "VariationalDropout",
]
