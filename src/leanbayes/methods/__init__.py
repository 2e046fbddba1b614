"""The methods: one algorithm a file. Importing this room registers them all, without importing torch."""

from ..method import Method
from .dropout.config import Dropout
from .ensemble.config import Ensemble
from .mean_field.config import MeanField
from .nested.config import Nested
from .nested.dropout import NestedDropout
from .patch.config import Patch
from .patch.drop_connect import DropConnect
from .patch.point import Point
from .sparse.rigl import Rigl
from .sparse.subspace import SparseSubspace
from .structured_pruning.config import StructuredPruning
from .variance.config import Variance
from .variational_dropout.config import VariationalDropout

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
