"""Ensemble model patching and its baselines."""

from .config import Patch, norm_layer, norms, norms_and_output, norms_input_output
from .drop_connect import DropConnect
from .point import Point

__all__ = ["DropConnect", "Patch", "Point", "norm_layer", "norms", "norms_and_output", "norms_input_output"]
