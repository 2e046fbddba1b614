"""From a plain model to a Bayesian one and back."""

from .apply import bayesianize_, restore_
from .plan import Entry, Plan, plan
from .record import Record, conversions

__all__ = ["Entry", "Plan", "Record", "bayesianize_", "conversions", "plan", "restore_"]
