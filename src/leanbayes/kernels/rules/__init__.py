"""The operations that run on blocks: what numbers each gives, and nothing of autograd, which is above them.

A rule takes the arguments of an aten operation and returns what it returns, or NotImplemented where its arguments are
not of the simple kind that it knows; the operation then runs on ordinary tensors. Importing this package registers all.
"""

from . import arithmetic, norms, pooling, views

__all__ = ["arithmetic", "norms", "pooling", "views"]
