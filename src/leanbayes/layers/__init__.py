"""Posterior x torch operation: where weight noise meets data."""

from .bayes import BayesLayer
from .dropout import DropoutLayer, DropoutMask

__all__ = ["BayesLayer", "DropoutLayer", "DropoutMask"]
