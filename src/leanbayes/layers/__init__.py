"""Posterior x torch operation: where weight noise meets data."""

from ..methods.dropout.layer import DropoutLayer, DropoutMask
from .bayes import BayesLayer

__all__ = ["BayesLayer", "DropoutLayer", "DropoutMask"]
