"""Every number that is reported: pure functions, the streams that carry them, and `evaluate`, which asks them all."""

from .calibration import Reliability, ece, mce, reliability
from .classification import Classification, accuracy, brier, nll
from .ood import aupr, auroc, fpr95, rank_metrics
from .regression import Regression, coverage, interval_width, log_density, mae, rmse
from .result import Comparison, Evaluation, compare
from .run import evaluate

__all__ = [
    "Classification",
    "Comparison",
    "Evaluation",
    "Regression",
    "Reliability",
    "accuracy",
    "aupr",
    "auroc",
    "brier",
    "compare",
    "coverage",
    "ece",
    "evaluate",
    "fpr95",
    "interval_width",
    "log_density",
    "mae",
    "mce",
    "nll",
    "rank_metrics",
    "reliability",
    "rmse",
]
