"""Every number that is reported: pure functions, the streams that carry them, and `evaluate`, which asks them all.

Names load lazily, so that the configs of corruptions and attacks cost the command line no import of torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attack import Attack as Attack
    from .bootstrap import rank_replicates as rank_replicates
    from .bootstrap import replicates as replicates
    from .calibration import Reliability as Reliability
    from .calibration import ece as ece
    from .calibration import mce as mce
    from .calibration import reliability as reliability
    from .classification import Classification as Classification
    from .classification import accuracy as accuracy
    from .classification import brier as brier
    from .classification import nll as nll
    from .corruption import Corruptions as Corruptions
    from .intervals import Difference as Difference
    from .ood import aupr as aupr
    from .ood import auroc as auroc
    from .ood import fpr95 as fpr95
    from .ood import rank_metrics as rank_metrics
    from .pixels import Pixels as Pixels
    from .regression import Regression as Regression
    from .regression import coverage as coverage
    from .regression import interval_width as interval_width
    from .regression import log_density as log_density
    from .regression import mae as mae
    from .regression import rmse as rmse
    from .result import Comparison as Comparison
    from .result import Evaluation as Evaluation
    from .result import compare as compare
    from .run import evaluate as evaluate
    from .selective import RiskCoverage as RiskCoverage
    from .selective import risk_coverage as risk_coverage
    from .several import evaluate_each as evaluate_each
    from .temperature import calibrate_ as calibrate_
    from .temperature import fit_temperature as fit_temperature

_HOMES = {
    "Attack": "attack",
    "Classification": "classification",
    "Comparison": "result",
    "Corruptions": "corruption",
    "Difference": "intervals",
    "Evaluation": "result",
    "Pixels": "pixels",
    "Regression": "regression",
    "Reliability": "calibration",
    "RiskCoverage": "selective",
    "accuracy": "classification",
    "aupr": "ood",
    "auroc": "ood",
    "brier": "classification",
    "calibrate_": "temperature",
    "compare": "result",
    "coverage": "regression",
    "ece": "calibration",
    "evaluate": "run",
    "evaluate_each": "several",
    "fit_temperature": "temperature",
    "fpr95": "ood",
    "interval_width": "regression",
    "log_density": "regression",
    "mae": "regression",
    "mce": "calibration",
    "nll": "classification",
    "rank_metrics": "ood",
    "rank_replicates": "bootstrap",
    "reliability": "calibration",
    "replicates": "bootstrap",
    "risk_coverage": "selective",
    "rmse": "regression",
}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """A room may be called like a function (brier): the name on the package stays the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
