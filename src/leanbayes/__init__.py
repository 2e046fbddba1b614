"""leanbayes: make the PyTorch network you already have Bayesian, at a cost you can pay.

Names load on first use, so that ``import leanbayes`` costs no more than the names you touch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import moved
from ._version import __version__

if TYPE_CHECKING:
    from .artifacts import load as load
    from .artifacts import save as save
    from .compress.extract import extract as extract
    from .compress.kappa import kappa as kappa
    from .compress.prune import prune_ as prune_
    from .compress.width import importance as importance
    from .compress.width import likely_width as likely_width
    from .compress.width import set_width_ as set_width_
    from .compress.width import truncate_ as truncate_
    from .compress.width import widths as widths
    from .convert.apply import bayesianize_ as bayesianize_
    from .convert.apply import restore_ as restore_
    from .convert.plan import Plan as Plan
    from .convert.plan import plan as plan
    from .costs import cost as cost
    from .errors import LeanBayesError as LeanBayesError
    from .errors import LeanBayesWarning as LeanBayesWarning
    from .evaluation.attack import Attack as Attack
    from .evaluation.corruption import Corruptions as Corruptions
    from .evaluation.pixels import Pixels as Pixels
    from .evaluation.result import Comparison as Comparison
    from .evaluation.result import Evaluation as Evaluation
    from .evaluation.result import compare as compare
    from .evaluation.run import evaluate as evaluate
    from .evaluation.several_models import evaluate_each as evaluate_each
    from .evaluation.temperature import calibrate_ as calibrate_
    from .kl import kl_sum as kl_sum
    from .likelihoods import Classification as Classification
    from .likelihoods import Regression as Regression
    from .likelihoods import Segmentation as Segmentation
    from .methods import DropConnect as DropConnect
    from .methods import Dropout as Dropout
    from .methods import Ensemble as Ensemble
    from .methods import MeanField as MeanField
    from .methods import Nested as Nested
    from .methods import NestedDropout as NestedDropout
    from .methods import Patch as Patch
    from .methods import Point as Point
    from .methods import Rigl as Rigl
    from .methods import SparseSubspace as SparseSubspace
    from .methods import StructuredPruning as StructuredPruning
    from .methods import Variance as Variance
    from .methods import VariationalDropout as VariationalDropout
    from .methods.patch.coordinate import CoordinateDescent as CoordinateDescent
    from .methods.variance.transition import Transition as Transition
    from .methods.variance.zero_means import zero_means_ as zero_means_
    from .prediction.api import predict as predict
    from .prediction.predictive import Predictive as Predictive
    from .priors import LogUniform as LogUniform
    from .priors import Normal as Normal
    from .priors import ScaleMixture as ScaleMixture
    from .priors import StudentT as StudentT
    from .sampling import using as using
    from .sklearn import BayesClassifier as BayesClassifier
    from .sklearn import BayesRegressor as BayesRegressor
    from .training.callbacks import Callback as Callback
    from .training.callbacks import EarlyStopping as EarlyStopping
    from .training.callbacks import callbacks as callbacks
    from .training.elbo import ELBO as ELBO
    from .training.fit import fit as fit
    from .training.follow import follow as follow
    from .training.natural_gradient import NaturalGradientSGD as NaturalGradientSGD
    from .training.recalibrate import recalibrate_ as recalibrate_
    from .training.schedules import warmup as warmup

_HOMES = {
    "Attack": "evaluation.attack",
    "BayesClassifier": "sklearn",
    "BayesRegressor": "sklearn",
    "Callback": "training.callbacks",
    "Classification": "likelihoods",
    "Comparison": "evaluation.result",
    "CoordinateDescent": "methods.patch.coordinate",
    "Corruptions": "evaluation.corruption",
    "DropConnect": "methods",
    "Dropout": "methods",
    "ELBO": "training.elbo",
    "EarlyStopping": "training.callbacks",
    "Ensemble": "methods",
    "Evaluation": "evaluation.result",
    "LeanBayesError": "errors",
    "LeanBayesWarning": "errors",
    "LogUniform": "priors",
    "MeanField": "methods",
    "NaturalGradientSGD": "training.natural_gradient",
    "Nested": "methods",
    "NestedDropout": "methods",
    "Normal": "priors",
    "Patch": "methods",
    "Pixels": "evaluation.pixels",
    "Plan": "convert.plan",
    "Point": "methods",
    "Predictive": "prediction.predictive",
    "Regression": "likelihoods",
    "Rigl": "methods",
    "ScaleMixture": "priors",
    "Segmentation": "likelihoods",
    "SparseSubspace": "methods",
    "StructuredPruning": "methods",
    "StudentT": "priors",
    "Transition": "methods.variance.transition",
    "Variance": "methods",
    "VariationalDropout": "methods",
    "bayesianize_": "convert.apply",
    "calibrate_": "evaluation.temperature",
    "callbacks": "training.callbacks",
    "compare": "evaluation.result",
    "cost": "costs",
    "evaluate": "evaluation.run",
    "evaluate_each": "evaluation.several_models",
    "extract": "compress.extract",
    "fit": "training.fit",
    "follow": "training.follow",
    "importance": "compress.width",
    "kappa": "compress.kappa",
    "kl_sum": "kl",
    "likely_width": "compress.width",
    "load": "artifacts",
    "plan": "convert.plan",
    "predict": "prediction.api",
    "prune_": "compress.prune",
    "recalibrate_": "training.recalibrate",
    "restore_": "convert.apply",
    "save": "artifacts",
    "set_width_": "compress.width",
    "truncate_": "compress.width",
    "using": "sampling",
    "warmup": "training.schedules",
    "widths": "compress.width",
    "zero_means_": "methods.variance.zero_means",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'leanbayes' has no attribute {name!r}")
    value = getattr(import_module(f"leanbayes.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Importing a room under its old name (leanbayes.predict) does not replace the function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
moved.install()
