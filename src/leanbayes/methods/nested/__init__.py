"""Nested networks: trained once, run at any width."""

from .config import WEIGHTS, Nested, NestedDropout

__all__ = ["WEIGHTS", "Nested", "NestedDropout"]
