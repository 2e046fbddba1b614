"""Prediction by moments: mean and variance go through the network once, instead of samples."""

from .accuracy import LayerMoments, check_moments
from .engine import OnePass, one_pass
from .law import Moments
from .outputs import one_gaussian
from .rules import NoRule, module_rule, rule

__all__ = [
    "LayerMoments",
    "Moments",
    "NoRule",
    "OnePass",
    "check_moments",
    "module_rule",
    "one_gaussian",
    "one_pass",
    "rule",
]
