"""Evaluation of a model in one call, its result, and the metrics as functions.

Names load lazily, so that the configs of corruptions and attacks cost the command line no import of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import attach

if TYPE_CHECKING:
    from .configs import Attack as Attack, Corruptions as Corruptions
    from .metrics.bootstrap import rank_replicates as rank_replicates, replicates as replicates
    from .metrics.brier import brier as brier, decomposition as decomposition
    from .metrics.calibration import (
        Reliability as Reliability,
        adaptive_ece as adaptive_ece,
        ece as ece,
        mce as mce,
        reliability as reliability,
    )
    from .metrics.classification import Classification as Classification, accuracy as accuracy, nll as nll
    from .metrics.classwise import (
        classwise_ace as classwise_ace,
        classwise_ece as classwise_ece,
        classwise_l2 as classwise_l2,
    )
    from .metrics.forecast import (
        crps as crps,
        interval_error as interval_error,
        pit_histogram as pit_histogram,
        sharpness as sharpness,
    )
    from .metrics.human import votes as votes
    from .metrics.intervals import Difference as Difference
    from .metrics.ood import aupr as aupr, auroc as auroc, fpr95 as fpr95, rank_metrics as rank_metrics
    from .metrics.regression import (
        Regression as Regression,
        coverage as coverage,
        interval_width as interval_width,
        log_density as log_density,
        mae as mae,
        rmse as rmse,
    )
    from .metrics.segmentation import (
        dice as dice,
        diversity as diversity,
        ged as ged,
        hungarian_iou as hungarian_iou,
        pixel_calibration as pixel_calibration,
        variance_correlation as variance_correlation,
    )
    from .metrics.selective import RiskCoverage as RiskCoverage, risk_coverage as risk_coverage
    from .pixels import Pixels as Pixels
    from .result import Comparison as Comparison, Evaluation as Evaluation, compare as compare
    from .run import evaluate as evaluate
    from .several_models import evaluate_each as evaluate_each
    from .temperature import calibrate_ as calibrate_, fit_temperature as fit_temperature

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "configs": "Attack Corruptions",
        "metrics.bootstrap": "rank_replicates replicates",
        "metrics.brier": "brier decomposition",
        "metrics.calibration": "Reliability adaptive_ece ece mce reliability",
        "metrics.classification": "Classification accuracy nll",
        "metrics.classwise": "classwise_ace classwise_ece classwise_l2",
        "metrics.forecast": "crps interval_error pit_histogram sharpness",
        "metrics.human": "votes",
        "metrics.intervals": "Difference",
        "metrics.ood": "aupr auroc fpr95 rank_metrics",
        "metrics.regression": "Regression coverage interval_width log_density mae rmse",
        "metrics.segmentation": "dice diversity ged hungarian_iou pixel_calibration variance_correlation",
        "metrics.selective": "RiskCoverage risk_coverage",
        "pixels": "Pixels",
        "result": "Comparison Evaluation compare",
        "run": "evaluate",
        "several_models": "evaluate_each",
        "temperature": "calibrate_ fit_temperature",
    },
)
