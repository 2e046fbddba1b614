"""`Likelihood`: the base class of likelihoods, with checks of outputs and targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DataError, PredictionError


class Likelihood(nn.Module):
    """p(y | output) of one datum; subclasses define the meaning of the output."""

    task: str = "custom"
    class_dim: int | None = None  # where the classes are, if there are any
    ignore_index: int | None = None  # a label that does not count

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y | output) of each datum: shape (batch,)."""
        raise NotImplementedError

    def align(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets, checked against the outputs and in the shape `log_prob` compares them in."""
        return targets

    def drawn(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets of a training step: those given, or one of several that a datum has."""
        return targets

    def doubt(self, outputs: Tensor) -> str | None:
        """Why these outputs of training are probably not what the task expects, for a warning; None otherwise."""
        return None

    def probs(self, outputs: Tensor) -> Tensor:
        """Class probabilities."""
        raise PredictionError(f"probs: expected a task with classes, received {self.task}; see mean_and_noise")

    def log_probs(self, outputs: Tensor) -> Tensor:
        """The logarithms of the class probabilities."""
        found = self.probs(outputs)
        return found.clamp_min(torch.finfo(found.dtype).tiny).log()

    def spread(self, outputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """Expected entropy and variance of the class probabilities, if an output is a distribution over them."""
        return None

    def energy(self, outputs: Tensor) -> Tensor | None:
        """-logsumexp of the raw logits of each datum; None if the outputs are not logits."""
        if (dim := self.class_dim) is None:
            return None
        logits = full(outputs)
        if logits.shape[dim] == 1:  # the logit s of class 1 stands for the pair (0, s)
            return -nn.functional.softplus(logits).squeeze(dim)
        if logits.shape[dim] == 2:  # in a third of the time
            return torch.logaddexp(*logits.unbind(dim)).neg_()
        return -torch.logsumexp(logits, dim)

    def mean_and_noise(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise variance of the target, both in the target's shape."""
        raise PredictionError(f"mean_and_noise: expected a regression, received {self.task}; see probs")

    def to_dict(self) -> dict[str, Any] | None:
        """The JSON form that `from_dict` reads; None for a function of the user."""
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v!r}" for k, v in (self.to_dict() or {}).items() if k not in ("kind", "version"))


def full(outputs: Tensor) -> Tensor:
    """At least single precision: sums over pixels and squares of errors overflow in half."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def check_tensor(targets: Any, what: str) -> None:
    """Refuse targets that are not there, or are no tensor."""
    if not isinstance(targets, Tensor):
        got = "none; the loader must yield (inputs, targets)" if targets is None else type(targets).__name__
        raise DataError(f"{what}: expected a tensor of targets, received {got}")


def shape_of(tensor: Tensor) -> str:
    """A shape as an error writes it."""
    return str(tuple(tensor.shape))
