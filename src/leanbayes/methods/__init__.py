"""The methods: one algorithm a file. Importing this room registers them all, without importing torch."""

from .base import Method
from .dropout import Dropout
from .mean_field import MeanField
from .variational_dropout import VariationalDropout

__all__ = ["Dropout", "MeanField", "Method", "VariationalDropout"]
