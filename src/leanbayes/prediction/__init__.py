"""Sampling a posterior into predictions."""

from .api import predict, resolve_task
from .predictive import Predictive

__all__ = ["Predictive", "predict", "resolve_task"]
