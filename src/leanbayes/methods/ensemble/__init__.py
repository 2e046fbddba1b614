"""Deep ensembles of any method."""

from .config import Ensemble

__all__ = ["Ensemble"]
