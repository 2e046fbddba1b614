"""What the recipes of sparse subspace VI measure of a network: its answers, its size, and what pruning leaves of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..methods import StructuredPruning, VariationalDropout
from . import workload
from .base import Metrics

if TYPE_CHECKING:
    from torch import nn

    from ..data import DataSet
    from .sparse import Run


def quality(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Accuracy, loss and both calibration errors on the test part."""
    from ..prediction import predict

    inputs, targets = data.test.tensors
    options: dict[str, Any] = {"samples": samples, "seed": seed, "chunk": workload.ROWS * samples}
    return scores(predict(model, inputs, task="classification", **options).probs, targets)


def scores(probs: Any, targets: Any) -> Metrics:
    """Of predictions that have been made."""
    from ..evaluation.metrics import calibration, classification, classwise

    return {
        "accuracy": classification.accuracy(probs, targets),
        "nll": classification.nll(probs, targets),
        "ece": calibration.ece(probs, targets, bins=15, min_count=0),
        "classwise_l2": classwise.classwise_l2(probs, targets),
    }


def size(model: nn.Module, data: DataSet, run: Run) -> Metrics:
    """Numbers in use, the share of weights, and nominal operations of the whole training against those of dense VI."""
    from ..costs import cost

    example = data.test.tensors[0][:1]
    own, plain = cost(model, example), cost(workload.network(run, data), example)
    count = len(data.train)
    return {
        "parameters": own.active_parameters,
        "density": weights_in_use(model) / weights_in_all(workload.network(run, data)),
        "training FLOPs": own.training_flops(count, run.epochs),
        "x dense VI": own.training_flops() / (2 * plain.training_flops()),
    }


def weights_in_all(model: nn.Module) -> int:
    """The weights of the plain network: those of Linear layers and convolutions, without biases."""
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


def weights_in_use(model: nn.Module) -> int:
    """How many of the weights are left, each counted once whatever numbers describe it."""
    from ..methods.structured_pruning.layer import ChannelNoiseLayer
    from ..posteriors.base import Posterior
    from ..posteriors.sparse import Sparse

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
    import warnings

    from ..compress.prune import prune_
    from ..convert.record import conversions
    from ..errors import LeanBayesWarning
    from ..methods.structured_pruning import prune_channels_

    methods = list(conversions(model).values())
    if any(isinstance(method, VariationalDropout) for method in methods):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeanBayesWarning)  # that a layer has nothing left shows in its accuracy
            prune_(model, by="log_alpha")
    if any(isinstance(method, StructuredPruning) for method in methods):
        prune_channels_(model)
    return model
