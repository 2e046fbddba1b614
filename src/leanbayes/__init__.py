"""leanbayes: make the PyTorch network you already have Bayesian, at a cost you can pay.

Names load on first use, so that ``import leanbayes`` costs no more than the names you touch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import moved
from ._version import __version__ as __version__
from .registry import methods as _methods

if TYPE_CHECKING:
    from .artifacts import load as load, save as save
    from .auto import Selection as Selection, auto as auto
    from .benchmark import Benchmark as Benchmark, Scaling as Scaling, benchmark as benchmark, scaling as scaling
    from .compress.cascade import Cascade as Cascade
    from .compress.correlation import WidthCorrelation as WidthCorrelation, width_correlation as width_correlation
    from .compress.curve import PruningCurve as PruningCurve, pruning_curve as pruning_curve
    from .compress.distill import distill as distill
    from .compress.extract import extract as extract
    from .compress.kappa import kappa as kappa
    from .compress.prune import prune_ as prune_
    from .compress.width import (
        importance as importance,
        likely_width as likely_width,
        set_length_ as set_length_,
        set_width_ as set_width_,
        truncate_ as truncate_,
        widths as widths,
    )
    from .convert.apply import bayesianize_ as bayesianize_, restore_ as restore_
    from .convert.plan import Plan as Plan, plan as plan
    from .costs import cost as cost
    from .errors import LeanBayesError as LeanBayesError, LeanBayesWarning as LeanBayesWarning
    from .evaluation.configs import Attack as Attack, Corruptions as Corruptions
    from .evaluation.conformalize import conformalize_ as conformalize_
    from .evaluation.generation import Generation as Generation, evaluate_generation as evaluate_generation
    from .evaluation.pixels import Pixels as Pixels
    from .evaluation.result import Comparison as Comparison, Evaluation as Evaluation, compare as compare
    from .evaluation.run import evaluate as evaluate
    from .evaluation.several_models import evaluate_each as evaluate_each
    from .evaluation.temperature import calibrate_ as calibrate_
    from .exports.api import export as export
    from .exports.int8 import quantize_export as quantize_export
    from .exports.reading import read_export as read_export
    from .integrations.hub import from_hub as from_hub, push_to_hub as push_to_hub
    from .integrations.lightning import LightningCallback as LightningCallback
    from .integrations.trackers import MLflowTracker as MLflowTracker, WandbTracker as WandbTracker
    from .integrations.transformers import HFTrainerMixin as HFTrainerMixin
    from .kl import kl_sum as kl_sum
    from .latents.autoencoder import Autoencoder as Autoencoder
    from .latents.backbones import image_autoencoder as image_autoencoder
    from .latents.config import (
        GaussianLatents as GaussianLatents,
        JointLatents as JointLatents,
        OrderedLatents as OrderedLatents,
        PointLatents as PointLatents,
    )
    from .likelihoods import (
        Classification as Classification,
        Dirichlet as Dirichlet,
        Regression as Regression,
        Segmentation as Segmentation,
    )
    from .methods.dropout import Dropout as Dropout
    from .methods.ensemble import Ensemble as Ensemble
    from .methods.mean_field import MeanField as MeanField
    from .methods.nested import Nested as Nested, NestedDropout as NestedDropout
    from .methods.nested.student import nested_student as nested_student
    from .methods.patch import DropConnect as DropConnect, Patch as Patch, Point as Point
    from .methods.patch.coordinate import CoordinateDescent as CoordinateDescent
    from .methods.sparse import Rigl as Rigl, SparseSubspace as SparseSubspace
    from .methods.structured_pruning import StructuredPruning as StructuredPruning
    from .methods.variance import Variance as Variance
    from .methods.variance.transition import Transition as Transition
    from .methods.variance.zero_means import zero_means_ as zero_means_
    from .methods.variational_dropout import VariationalDropout as VariationalDropout
    from .prediction.api import predict as predict
    from .prediction.predictive import Predictive as Predictive
    from .priors import (
        EmpiricalNormal as EmpiricalNormal,
        LogUniform as LogUniform,
        Normal as Normal,
        ScaleMixture as ScaleMixture,
        StudentT as StudentT,
    )
    from .sampling import using as using
    from .segmentation.network import ProbabilisticUNet as ProbabilisticUNet, probabilistic_unet as probabilistic_unet
    from .sklearn import BayesClassifier as BayesClassifier, BayesRegressor as BayesRegressor
    from .training.callbacks import Callback as Callback, EarlyStopping as EarlyStopping, callbacks as callbacks
    from .training.elbo import ELBO as ELBO
    from .training.fit import fit as fit
    from .training.follow import follow as follow
    from .training.natural_gradient import NaturalGradientSGD as NaturalGradientSGD
    from .training.noise import tune_noise_ as tune_noise_
    from .training.noise_trials import Tuning as Tuning
    from .training.parameter_groups import parameter_groups as parameter_groups
    from .training.recalibrate import recalibrate_ as recalibrate_
    from .training.schedules import warmup as warmup
    from .training.sgd import SGD as SGD
    from .training.trackers import TensorBoardTracker as TensorBoardTracker

_NAMES = {
    "artifacts": "load save",
    "auto": "Selection auto",
    "benchmark": "Benchmark Scaling benchmark scaling",
    "compress.cascade": "Cascade",
    "compress.correlation": "WidthCorrelation width_correlation",
    "compress.curve": "PruningCurve pruning_curve",
    "compress.distill": "distill",
    "compress.extract": "extract",
    "compress.kappa": "kappa",
    "compress.prune": "prune_",
    "compress.width": "importance likely_width set_length_ set_width_ truncate_ widths",
    "convert.apply": "bayesianize_ restore_",
    "convert.plan": "Plan plan",
    "costs": "cost",
    "errors": "LeanBayesError LeanBayesWarning",
    "evaluation.configs": "Attack Corruptions",
    "evaluation.conformalize": "conformalize_",
    "evaluation.generation": "Generation evaluate_generation",
    "evaluation.pixels": "Pixels",
    "evaluation.result": "Comparison Evaluation compare",
    "evaluation.run": "evaluate",
    "evaluation.several_models": "evaluate_each",
    "evaluation.temperature": "calibrate_",
    "exports.api": "export",
    "exports.int8": "quantize_export",
    "exports.reading": "read_export",
    "integrations.hub": "from_hub push_to_hub",
    "integrations.lightning": "LightningCallback",
    "integrations.trackers": "MLflowTracker WandbTracker",
    "integrations.transformers": "HFTrainerMixin",
    "kl": "kl_sum",
    "latents.autoencoder": "Autoencoder",
    "latents.backbones": "image_autoencoder",
    "latents.config": "GaussianLatents JointLatents OrderedLatents PointLatents",
    "likelihoods": "Classification Dirichlet Regression Segmentation",
    "methods.nested.student": "nested_student",
    "methods.patch.coordinate": "CoordinateDescent",
    "methods.variance.transition": "Transition",
    "methods.variance.zero_means": "zero_means_",
    "prediction.api": "predict",
    "prediction.predictive": "Predictive",
    "priors": "EmpiricalNormal LogUniform Normal ScaleMixture StudentT",
    "sampling": "using",
    "segmentation.network": "ProbabilisticUNet probabilistic_unet",
    "sklearn": "BayesClassifier BayesRegressor",
    "training.callbacks": "Callback EarlyStopping callbacks",
    "training.elbo": "ELBO",
    "training.fit": "fit",
    "training.follow": "follow",
    "training.natural_gradient": "NaturalGradientSGD",
    "training.noise": "tune_noise_",
    "training.noise_trials": "Tuning",
    "training.parameter_groups": "parameter_groups",
    "training.recalibrate": "recalibrate_",
    "training.schedules": "warmup",
    "training.sgd": "SGD",
    "training.trackers": "TensorBoardTracker",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name: one of the table, or a method, which may come from another package."""
    if name == "__all__":
        return ["__version__", *sorted([*_HOMES, *_methods()])]
    if name in _HOMES:
        value = getattr(import_module(f"leanbayes.{_HOMES[name]}"), name)
    elif name in ("data", "models"):
        value = import_module(f"leanbayes.{name}")
    elif not name[:1].isupper() or name not in _methods():
        raise AttributeError(f"module 'leanbayes' has no attribute {name!r}")
    else:
        value = _methods()[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __getattr__("__all__")  # type: ignore[no-any-return]


class _Package(ModuleType):
    """Importing a room under its old name (leanbayes.predict) does not replace the function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
moved.install()
