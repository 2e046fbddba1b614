"""What every row of the CIFAR-10 table is measured by."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb

from ...costs import cost
from ...data import DataSet, load
from ...evaluation.metrics import brier, calibration, classification
from ...evaluation.metrics.ood import auroc
from ...timing import in_turns, times_as_long, training_step
from ..corrupted import Sweep
from ..results import Metrics
from .training import OneCycle

Answer = Callable[[Tensor], Tensor]
"""Class probabilities (N, C) of inputs, averaged over samples or members."""


@dataclass(frozen=True)
class Measures:
    """samples: of a network drawn to predict. ood: other data, the first ``strange`` images of them.

    sweep: corrupted test images. timed: images of a batch that times are measured on, over so many turns.
    """

    samples: int = 16
    ood: str = "svhn"
    strange: int = 2000
    sweep: Sweep = Sweep(250, severities=(1, 3, 5))  # noqa: RUF009  (frozen)
    timed: int = 64
    turns: int = 5

    def key(self) -> dict[str, Any]:
        """All that the measurements depend on, for `Jobs`."""
        return {**asdict(self), "measured": "cifar10"}

    def answer(self, model: nn.Module, seed: int) -> Answer:
        """The averaged prediction of a network."""
        return lambda inputs: (
            lb.predict(
                model, inputs, task="classification", samples=self.samples, seed=seed, chunk=200 * self.samples
            ).probs
        )

    def quality(self, answer: Answer, data: DataSet) -> Metrics:
        """Quality on test images, on corrupted ones, and how well entropy tells other data apart."""
        inputs, targets = data.test.tensors
        probs = answer(inputs)
        found = {**scores(probs, targets), "brier": brier.brier(probs, targets)}
        strange = load(self.ood, parts="test", normalise=data).test.tensors[0][: self.strange]
        found[f"{self.ood} AUROC"] = auroc(entropy(probs), entropy(answer(strange)))
        cells = [scores(answer(x), y) for name, _, x, y in self.sweep.images(data) if name != "clean"]
        mean = {name: sum(cell[name] for cell in cells) / len(cells) for name in cells[0]}
        return {
            **found,
            "corruption error": 1 - mean["accuracy"],
            "corruption nll": mean["nll"],
            "corruption ece": mean["ece"],
        }

    def size(self, model: nn.Module, data: DataSet) -> Metrics:
        """Parameters in use, and bytes."""
        own = cost(model, data.train.tensors[0][:1])
        return {"parameters": own.active_parameters, "bytes": own.bytes}

    def costs(self, model: nn.Module, training: OneCycle, data: DataSet, epochs: float) -> Metrics:
        """Size, and time beside the plain network: of training in its epochs, of predicting in its passes."""
        inputs, targets = (part[: self.timed] for part in data.train.tensors)
        plain = training.network(data)
        fits = {"own": copy.deepcopy(model), "plain": copy.deepcopy(plain)}
        steps = {name: self._step(one, training, inputs, targets, len(data.train)) for name, one in fits.items()}
        train = in_turns(steps, self.turns)
        passes = {"own": lambda: self.answer(model, 0)(inputs), "plain": lambda: self.answer(plain.eval(), 0)(inputs)}
        predict = in_turns(passes, self.turns)
        return {
            **self.size(model, data),
            "epochs": epochs * times_as_long(train["own"], train["plain"]),
            "passes": times_as_long(predict["own"], predict["plain"]),
        }

    @staticmethod
    def _step(model: nn.Module, training: OneCycle, inputs: Tensor, targets: Tensor, count: int) -> Callable[[], None]:
        elbo = lb.ELBO("classification", count)
        return training_step(
            model, training.optimizer(model), inputs, targets, lambda outputs, y: elbo(model, outputs, y).loss
        )


def entropy(probs: Tensor) -> Tensor:
    """Of each row, in nats."""
    return torch.special.entr(probs.double()).sum(1)


def scores(probs: Tensor, targets: Tensor) -> Metrics:
    """Accuracy, loss and calibration error (15 bins)."""
    return {
        "accuracy": classification.accuracy(probs, targets),
        "nll": classification.nll(probs, targets),
        "ece": calibration.ece(probs, targets, bins=15, min_count=0),
    }


def averaged(answers: Sequence[Answer]) -> Answer:
    """The mean of several answers: a deep ensemble."""
    return lambda inputs: torch.stack([answer(inputs) for answer in answers]).mean(0)
