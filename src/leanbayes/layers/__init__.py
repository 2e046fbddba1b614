"""Layers: a posterior combined with a torch operation."""

from .bayes import BayesLayer

__all__ = ["BayesLayer"]
