"""One call that asks a model everything, what it found, and the numbers themselves (`metrics`).

Names load lazily, so that the configs of corruptions and attacks cost the command line no import of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attack import Attack as Attack
    from .corruption import Corruptions as Corruptions
    from .metrics.bootstrap import rank_replicates as rank_replicates
    from .metrics.bootstrap import replicates as replicates
    from .metrics.brier import brier as brier
    from .metrics.brier import decomposition as decomposition
    from .metrics.calibration import Reliability as Reliability
    from .metrics.calibration import adaptive_ece as adaptive_ece
    from .metrics.calibration import ece as ece
    from .metrics.calibration import mce as mce
    from .metrics.calibration import reliability as reliability
    from .metrics.classification import Classification as Classification
    from .metrics.classification import accuracy as accuracy
    from .metrics.classification import nll as nll
    from .metrics.classwise import classwise_ace as classwise_ace
    from .metrics.classwise import classwise_ece as classwise_ece
    from .metrics.classwise import classwise_l2 as classwise_l2
    from .metrics.forecast import crps as crps
    from .metrics.forecast import interval_error as interval_error
    from .metrics.forecast import pit_histogram as pit_histogram
    from .metrics.forecast import sharpness as sharpness
    from .metrics.human import votes as votes
    from .metrics.intervals import Difference as Difference
    from .metrics.ood import aupr as aupr
    from .metrics.ood import auroc as auroc
    from .metrics.ood import fpr95 as fpr95
    from .metrics.ood import rank_metrics as rank_metrics
    from .metrics.regression import Regression as Regression
    from .metrics.regression import coverage as coverage
    from .metrics.regression import interval_width as interval_width
    from .metrics.regression import log_density as log_density
    from .metrics.regression import mae as mae
    from .metrics.regression import rmse as rmse
    from .metrics.selective import RiskCoverage as RiskCoverage
    from .metrics.selective import risk_coverage as risk_coverage
    from .pixels import Pixels as Pixels
    from .result import Comparison as Comparison
    from .result import Evaluation as Evaluation
    from .result import compare as compare
    from .run import evaluate as evaluate
    from .several_models import evaluate_each as evaluate_each
    from .temperature import calibrate_ as calibrate_
    from .temperature import fit_temperature as fit_temperature

_HOMES = {
    "Attack": "attack",
    "Classification": "metrics.classification",
    "Comparison": "result",
    "Corruptions": "corruption",
    "Difference": "metrics.intervals",
    "Evaluation": "result",
    "Pixels": "pixels",
    "Regression": "metrics.regression",
    "Reliability": "metrics.calibration",
    "RiskCoverage": "metrics.selective",
    "accuracy": "metrics.classification",
    "adaptive_ece": "metrics.calibration",
    "aupr": "metrics.ood",
    "auroc": "metrics.ood",
    "brier": "metrics.brier",
    "calibrate_": "temperature",
    "classwise_ace": "metrics.classwise",
    "classwise_ece": "metrics.classwise",
    "classwise_l2": "metrics.classwise",
    "compare": "result",
    "coverage": "metrics.regression",
    "crps": "metrics.forecast",
    "decomposition": "metrics.brier",
    "ece": "metrics.calibration",
    "evaluate": "run",
    "evaluate_each": "several_models",
    "fit_temperature": "temperature",
    "fpr95": "metrics.ood",
    "interval_error": "metrics.forecast",
    "interval_width": "metrics.regression",
    "log_density": "metrics.regression",
    "mae": "metrics.regression",
    "mce": "metrics.calibration",
    "nll": "metrics.classification",
    "pit_histogram": "metrics.forecast",
    "rank_metrics": "metrics.ood",
    "rank_replicates": "metrics.bootstrap",
    "reliability": "metrics.calibration",
    "replicates": "metrics.bootstrap",
    "risk_coverage": "metrics.selective",
    "rmse": "metrics.regression",
    "sharpness": "metrics.forecast",
    "votes": "metrics.human",
}

__all__ = [*sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return __all__
