"""What the experiments of variance networks measure: the three procedures, log alpha, and the ELBO.

Loss, optimiser and batches are the paper's: N * cross-entropy + KL without warm-up, Adam at 1e-3 that falls linearly to
0, batches of 200, noise on the outputs of every layer in training. Where the schedule is shorter than the paper's 200
epochs, log alpha has a learning rate of its own. Evaluation is with BatchNorm in evaluation mode, and an ensemble
consists of whole networks: one draw of all weights for all test images.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb

from ...convert.record import conversions
from ...data import DataSet
from ...eval_mode import undisturbed
from ...sampling import has_means, mix
from ..results import Metrics
from ..training import ROWS


def accuracy(model: nn.Module, data: DataSet, **options: Any) -> float:
    """Accuracy on the test part; the options are those of `predict`."""
    inputs, targets = data.test.tensors
    with warnings.catch_warnings():
        # the means of a layer past its phase transition are what is measured
        warnings.simplefilter("ignore", lb.LeanBayesWarning)
        pairs = ROWS * options.get("samples", 1)
        prediction = lb.predict(model, inputs, **{"task": "classification", "chunk": pairs, **options})
    return float((prediction.probs.argmax(-1) == targets).double().mean())


def procedures(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Accuracy of the paper's three procedures: one sample, the means, an ensemble."""
    found = {"stochastic": accuracy(model, data, samples=1, seed=seed)}
    if has_means(model):
        found["deterministic"] = accuracy(model, data, mean_only=True)
    return {**found, "ensemble": accuracy(model, data, samples=samples, seed=seed)}


def swapped_accuracy(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Ensemble accuracy once the means of all variance layers are set to 0 (equation 11)."""
    swapped = copy.deepcopy(model)
    lb.zero_means_(swapped)
    return {"zero-mean swap": accuracy(swapped, data, samples=samples, seed=seed)}


def recalibrated_accuracy(model: nn.Module, data: DataSet, images: int = 10_000) -> Metrics:
    """Accuracy at the means once BatchNorm's statistics have been re-estimated there."""
    again = lb.recalibrate_(copy.deepcopy(model), data.train, at="means", data=images)
    return {"deterministic, recalibrated": accuracy(again, data, mean_only=True)}


def log_alphas(model: nn.Module) -> Metrics:
    """The median log alpha of every layer under `Variance` that has means."""
    return {f"log alpha {name}": float(values.median()) for name, values in _log_alphas(model).items()}


def shares_below(model: nn.Module, threshold: float = 0.0) -> Metrics:
    """The share of each such layer's weights whose log alpha is stuck below a threshold."""
    return {f"stuck {name}": float((values < threshold).double().mean()) for name, values in _log_alphas(model).items()}


def _log_alphas(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, method in conversions(model).items():
        if isinstance(method, lb.Variance) and method.parameterisation != "zero":
            q: Any = model.get_submodule(name).posteriors["weight"]  # type: ignore[union-attr, index]
            found[name] = -2 * q.snr().detach().log()
    return found


def elbo(model: nn.Module, data: DataSet, seed: int) -> Metrics:
    """The variational lower bound of the training set in nats: its log-likelihood under one draw for every image, as in
    training but with BatchNorm in evaluation mode, less the KL.
    """
    inputs, targets = data.train.tensors
    total = 0.0
    with undisturbed(model):
        torch.manual_seed(mix(seed, 1))
        for x, y in zip(inputs.split(ROWS), targets.split(ROWS), strict=True):
            total -= float(F.cross_entropy(model(x), y, reduction="sum"))
        kl = float(lb.kl_sum(model))
    return {"ELBO": total - kl, "KL": kl}
