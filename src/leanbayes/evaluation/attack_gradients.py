"""The gradient of a predictive distribution with respect to its inputs, with one sample in memory at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import EvaluationError

if TYPE_CHECKING:
    from ..likelihoods import Likelihood
    from ..prediction.engine import Engine


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Context manager in which no parameter requires a gradient, so that the graph leads to the inputs only.

    >>> model = nn.Linear(2, 2)
    >>> with frozen(model):
    ...     model.weight.requires_grad
    False
    >>> model.weight.requires_grad
    True
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def gradient(
    engine: Engine, likelihood: Likelihood, inputs: Tensor, classes: Tensor, objective: str = "predictive"
) -> Tensor:
    r"""The gradient of log p(class | x) with respect to x, through the samples of an engine.

    "predictive": of the log of the averaged probability,

        d/dx log (1/S) sum_s p_s = sum_s w_s d/dx log p_s,   w_s = p_s / sum_s p_s,

    exactly, though each sample's graph is freed before the next one is built: sums are kept relative to the largest
    p_s so far. "mean_log": of the average of log p_s, all w_s = 1/S (expectation over transformation: Athalye et al.,
    2018, section 4.2).

    inputs: (N, ...); classes: (N,) of integers. Returns a tensor like inputs.

    >>> from leanbayes.likelihoods import Classification
    >>> from leanbayes.prediction.engine import Engine
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> gradient(Engine(model, 1, 0), Classification(), torch.zeros(1, 2), torch.tensor([0]))
    tensor([[ 0.5000, -0.5000]])
    """
    parts, start = [], 0
    inputs = inputs.detach().requires_grad_()
    engine.done = 0  # the number of the first datum, as for every other call
    with torch.enable_grad():
        for block, groups in engine.blocks(inputs):
            labels = classes[start : start + len(block)]
            total = mass = largest = torch.empty(0)
            for number, outputs in enumerate(groups):
                log_probs = _log_probs(likelihood, outputs, labels)
                if not number:
                    total, mass = torch.zeros_like(block), torch.zeros_like(log_probs[0])
                    largest = torch.full_like(mass, -torch.inf if objective == "predictive" else 0.0)
                values = log_probs.detach() if objective == "predictive" else torch.zeros_like(log_probs)
                before, largest = largest, largest.maximum(values.amax(0))
                weights, shrink = (values - largest).exp(), (before - largest).exp()
                total = total * _wide(shrink, total) + _pull(log_probs, weights, block)
                mass = mass * shrink + weights.sum(0)
            parts.append(total / _wide(mass, total))
            start += len(block)
    return torch.cat(parts).detach()


def _log_probs(likelihood: Likelihood, outputs: Tensor, labels: Tensor) -> Tensor:
    """log p_s of each datum's class, (samples, data), from outputs (samples, data, ...)."""
    # in double: 1 - p of a confident network is rounded to 0 in single precision, which would mask its gradient
    if outputs.device.type != "mps":
        outputs = outputs.double()
    samples, data = outputs.shape[:2]
    return likelihood.log_prob(outputs.flatten(0, 1), labels.repeat(samples)).reshape(samples, data)


def _pull(log_probs: Tensor, weights: Tensor, block: Tensor) -> Tensor:
    """sum_s weight_s d log p_s / d block; data are independent, so one backward pass computes all of them."""
    found = None
    if log_probs.requires_grad:
        (found,) = torch.autograd.grad(log_probs, block, weights, allow_unused=True)
    if found is None:
        raise EvaluationError(
            "expected outputs that can be differentiated with respect to the inputs, received some that cannot; does "
            "the model detach its inputs, quantise them or run under torch.no_grad()? An attack needs its gradients"
        )
    return found


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))
