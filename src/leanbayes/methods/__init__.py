"""The methods: one algorithm a file. Importing this room registers them all, without importing torch."""

from .base import Method
from .drop_connect import DropConnect
from .dropout import Dropout
from .ensemble import Ensemble
from .mean_field import MeanField
from .nested import Nested
from .nested_dropout import NestedDropout
from .patch import Patch
from .point import Point
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
    "Nested",
    "NestedDropout",
    "Patch",
    "Point",
    "Rigl",
    "SparseSubspace",
    "StructuredPruning",
    "Variance",
    "VariationalDropout",
]
