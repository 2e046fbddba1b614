"""Posterior x torch operation: where weight noise meets data."""

from .bayes import BayesLayer

__all__ = ["BayesLayer"]
