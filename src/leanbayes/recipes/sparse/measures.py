"""Measures of the experiments of sparse subspace VI: predictions, size, and what pruning leaves."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

import leanbayes as lb

from ...convert.record import conversions
from ...costs import cost
from ...data import DataSet
from ...evaluation.metrics import calibration, classification, classwise
from ...methods.structured_pruning import prune_channels_
from ...methods.structured_pruning.layer import ChannelNoiseLayer
from ...posteriors.base import Posterior
from ...posteriors.sparse import Sparse
from ..results import Metrics
from ..training import ROWS, Training, weights_in_all


def predicted(model: nn.Module, inputs: Tensor, samples: int, seed: int) -> Any:
    """A prediction by whole draws of the weights, one for all of up to 1,000 images."""
    return lb.predict(model, inputs, task="classification", samples=samples, seed=seed, chunk=ROWS * samples)


def quality(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Accuracy, loss and both calibration errors on the test part."""
    inputs, targets = data.test.tensors
    return scores(predicted(model, inputs, samples, seed).probs, targets)


def scores(probs: Any, targets: Any) -> Metrics:
    """Accuracy, loss and both calibration errors of predicted probabilities."""
    return {
        "accuracy": classification.accuracy(probs, targets),
        "nll": classification.nll(probs, targets),
        "ece": calibration.ece(probs, targets, bins=15, min_count=0),
        "classwise_l2": classwise.classwise_l2(probs, targets),
    }


def size(model: nn.Module, data: DataSet, training: Training) -> Metrics:
    """Numbers in use, the share of weights, and nominal operations of the whole training against those of dense VI."""
    example = data.test.tensors[0][:1]
    plain = training.network(data)
    own, dense = cost(model, example), cost(plain, example)
    count = len(data.train)
    return {
        "parameters": own.active_parameters,
        "density": weights_in_use(model) / weights_in_all(plain),
        "training FLOPs": own.training_flops(count, training.epochs),
        "x dense VI": own.training_flops() / (2 * dense.training_flops()),
    }


def weights_in_use(model: nn.Module) -> int:
    """How many of the weights are left, each counted once whatever numbers describe it."""
    total = 0
    for name, module in model.named_modules():
        if isinstance(module, ChannelNoiseLayer):
            total += module.active_weights()
        elif isinstance(module, Sparse):
            total += module.active_parameters() // len(list(module.parameters()))
        elif isinstance(module, Posterior) and name.endswith(".weight"):
            total += module.shape.numel() if module.keep is None else int(module.keep.sum())
        else:
            total += sum(p.numel() for p in module._parameters.values() if p is not None and p.ndim > 1)
    return total


def pruned_(model: nn.Module) -> nn.Module:
    """Variational dropout and structured pruning without what they have found needless; others as they are."""
    methods = list(conversions(model).values())
    if any(isinstance(method, lb.VariationalDropout) for method in methods):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lb.LeanBayesWarning)  # that a layer has nothing left shows in its accuracy
            lb.prune_(model, by="log_alpha")
    if any(isinstance(method, lb.StructuredPruning) for method in methods):
        prune_channels_(model)
    return model
