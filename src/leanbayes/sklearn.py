"""scikit-learn estimators that train any network as a Bayesian one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from .auto import auto
from .checks import flag, iterable_of, refuse, whole_number
from .convert.apply import bayesianize_
from .errors import ConfigError
from .likelihoods import Classification, Likelihood, Regression
from .methods.mean_field import MeanField
from .models.perceptron import mlp
from .optional import missing
from .prediction.api import predict
from .prediction.predictive import Predictive
from .priors import Normal
from .training.fit import fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ImportError as error:
    raise missing("sklearn", "sklearn", "BayesClassifier and BayesRegressor") from error

if TYPE_CHECKING:
    from .method import Method


FROM_SCRATCH = MeanField(prior=Normal(), std=0.02)
"""What a small network that has not been trained is by default: the prior keeps its weights small, as none that goes
about them could. The kl_weight is 0.1, since the ELBO itself underfits a few hundred data: on held-out parts of UCI's
yacht and energy its density was worse, and its 95 % intervals covered all of yacht."""


class _BayesEstimator(BaseEstimator):
    """The base of both estimators: standardise, build, convert, fit."""

    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | None = None,
        *,
        hidden: tuple[int, ...] = (50,),
        method: Method | dict[Any, Any] | Literal["auto"] | None = None,
        epochs: int = 100,
        lr: float = 1e-2,
        batch_size: int = 64,
        kl_weight: float = 0.1,
        samples: int = 64,
        standardize: bool = True,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.method = method
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.kl_weight = kl_weight
        self.samples = samples
        self.standardize = standardize
        self.random_state = random_state
        self.verbose = verbose

    def _train(self, x: np.ndarray, y: Tensor, outputs: int, likelihood: Likelihood) -> None:
        flag("standardize", self.standardize)
        flag("verbose", self.verbose)
        if not isinstance(self.hidden, int):
            iterable_of("hidden", self.hidden, "widths", whole_number)
        self.x_mean_: np.ndarray
        self.x_scale_: np.ndarray
        self.x_mean_, self.x_scale_ = _scale(x) if self.standardize else (np.zeros(1), np.ones(1))
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            make = self._perceptron if self.module is None else self.module
            if not callable(make):
                refuse("module", "a function (n_features, n_outputs) -> nn.Module", make)
            model = make(x.shape[1], outputs)
            _check(model, x.shape[1], outputs)
            method = FROM_SCRATCH if self.method is None else self.method
            if method != "auto":
                self.plan_ = bayesianize_(model, method)
        options: dict[str, Any] = {
            "task": likelihood,
            "epochs": self.epochs,
            "lr": self.lr,
            "scheduler": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs),
            "batch_size": self.batch_size,
            "kl_weight": self.kl_weight,
            "seed": self.seed_,
            "accelerator": "cpu",
            "progress": self.verbose,
        }
        inputs = self._inputs(x)
        if method == "auto":
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(self.seed_))
            held, rest = order[: max(1, len(y) // 5)], order[max(1, len(y) // 5) :]
            data = (inputs[rest], y[rest]), (inputs[held], y[held])
            self.selection_ = auto(model, *data, samples=self.samples, **options)
            self.model_ = self.selection_.model
            return
        self.history_ = fit(model, (inputs, y), **options)
        self.model_ = model

    def _perceptron(self, features: int, outputs: int) -> nn.Module:
        return mlp(features, self.hidden, outputs)

    def _inputs(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor((x - self.x_mean_) / self.x_scale_, dtype=torch.float32)

    def predictive(self, X: Any) -> Predictive:
        """The whole predictive distribution of X (n, features): a `leanbayes.Predictive`, in the units of y."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float64)
        return predict(self.model_, self._inputs(x), samples=self.samples, seed=self.seed_)


class BayesClassifier(ClassifierMixin, _BayesEstimator):
    """A Bayesian neural classifier.

    module: a function (n_features, n_outputs) -> nn.Module; None for a perceptron with ``hidden`` units.
    method: how it becomes Bayesian (a method or rules, as in `leanbayes.bayesianize_`); None for `MeanField`
        with a standard normal prior;
        "auto" lets a fifth of the data choose (`leanbayes.auto`), and ``selection_`` has the table.
    samples: networks drawn for a prediction. standardize: whether to scale X to mean 0 and variance 1.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape, bool(model.score(X, y) > 0.9)
    ((2, 3), True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, features) and labels y (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"expected at least two classes, received one class: {self.classes_[0]!r}")
        self._train(X, torch.as_tensor(codes, dtype=torch.long), len(self.classes_), Classification())
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities (n, classes), averaged over networks."""
        probabilities = self.predictive(X).probs.double()
        return (probabilities / probabilities.sum(1, keepdim=True)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label (n,)."""
        codes = self.predict_proba(X).argmax(1)
        return self.classes_[codes]


class BayesRegressor(RegressorMixin, _BayesEstimator):
    """A Bayesian neural regressor with learned noise; the parameters are those of `BayesClassifier`.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BayesRegressor(epochs=5, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((3,), True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, features) and targets y, (n,) or (n, outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.y_shape_ = y.shape[1:]
        columns = y.reshape(len(y), -1)
        self.y_mean_, self.y_scale_ = _scale(columns)
        target = torch.as_tensor((columns - self.y_mean_) / self.y_scale_, dtype=torch.float32)
        self._train(X, target, columns.shape[1], Regression(noise="learned"))
        return self

    def predictive(self, X: Any) -> Predictive:
        """The whole predictive distribution of X (n, features): a `leanbayes.Predictive`, in the units of y."""
        standard = super().predictive(X)
        shift, scale = torch.as_tensor(self.y_mean_), torch.as_tensor(self.y_scale_)
        places = {name: vars(standard)[name] * scale + shift for name in ("mean", "drawn")}
        variances = ("variance", "aleatoric", "epistemic", "noise")
        return replace(standard, **places, **{name: vars(standard)[name] * scale.square() for name in variances})

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target, and with return_std the standard deviation of its predictive, in the shape of y."""
        prediction = self.predictive(X)
        shape = (len(prediction), *self.y_shape_)
        mean = prediction.mean.numpy().reshape(shape)
        return (mean, prediction.variance.sqrt().numpy().reshape(shape)) if return_std else mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check(model: Any, features: int, outputs: int) -> None:
    """Refuse what `module` made, unless it is a network from ``features`` to ``outputs`` numbers."""
    wanted = f"module: expected a function (n_features, n_outputs) -> nn.Module, called with ({features}, {outputs})"
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{wanted}, received {type(model).__name__}")
    mode = model.training
    try:
        with torch.no_grad():
            shape = tuple(model.eval()(torch.zeros(2, features)).shape)
    except Exception as error:  # a user's network may raise anything
        raise ConfigError(f"{wanted}; given 2 rows it raised {type(error).__name__}: {error}") from error
    finally:
        model.train(mode)
    if shape != (2, outputs):
        raise ConfigError(f"{wanted}; 2 rows gave outputs of shape {shape}, not (2, {outputs})")


def _scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation by column; a constant column is left unscaled."""
    std = values.std(0)
    return values.mean(0), np.where(std > 1e-12 * np.maximum(1.0, np.abs(values).max(0)), std, 1.0)
