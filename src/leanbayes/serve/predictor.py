"""The model behind a server: what it takes, and its answers to a batch of requests."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..compress.width import set_width_
from ..data.tables import Table
from ..errors import LeanBayesWarning, PredictionError
from ..ordering.ordered import ordered
from ..prediction import Predictive, predict
from .answers import Answer, answers
from .options import Ask

TOGETHER = 1e-3
"""How far apart the predictions of a datum alone and in a batch may be, as rounding explains it."""


@dataclass(frozen=True)
class Card:
    """What a server tells about its model.

    shape: of one datum. columns: of a table, which rows name. classes: of a classification. has_width: whether requests
    may choose one. coverage: of its conformal sets, with so many samples (conformal_samples). samples: those of a model
    that has them built in. together: whether data may be predicted in one batch with those of other requests.
    """

    task: str
    shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    has_width: bool = False
    coverage: float | None = None
    conformal_samples: int | None = None
    samples: int | None = None
    together: bool = True


class Predictor(Protocol):
    """What a server needs of a model."""

    card: Card

    def prepare(self, inputs: np.ndarray | Table) -> Tensor:
        """Inputs in original units as the network takes them."""

    def __call__(self, ask: Ask, parts: Sequence[Tensor]) -> list[list[Answer]]:
        """The answers to every part of a batch."""


class TorchPredictor:
    """`leanbayes.predict` of a model: the answers of a seed, whoever else is in the batch.

    prepare: from original units to what the network takes. shape: of one datum. classes: their names, where the model
    does not know them. scale: mean and standard deviation of a regression's target.
    """

    def __init__(
        self,
        model: nn.Module,
        prepare: Callable[[np.ndarray | Table], Tensor],
        shape: Sequence[int],
        *,
        classes: Sequence[str] = (),
        columns: Sequence[str] = (),
        scale: tuple[float, float] = (0.0, 1.0),
        task: str | None = None,
    ) -> None:
        self.model, self.prepare, self.task, self.scale = model.eval(), prepare, task, scale
        units = ordered(model)
        self.usual_width: Any = {unit.name: unit.fraction(unit.width) for unit in units if unit.width} or 1.0
        self.width: float | None = None
        one, several = self._tried(shape)
        if one.task not in ("classification", "regression"):
            raise PredictionError(f"serve: expected a model of classes or numbers, received one of {one.task}")
        found = one.conformal
        self.classes = tuple(classes) or one.classes
        if one.task == "classification":
            self.classes = self.classes or tuple(map(str, range(one.mean.shape[1])))
        self.card = Card(
            one.task,
            tuple(shape),
            self.classes if one.task == "classification" else (),
            tuple(columns),
            bool(units),
            None if found is None else found.coverage,
            None if found is None else found.samples,
            together=bool(torch.allclose(one.mean[0], several.mean[-1], rtol=TOGETHER, atol=TOGETHER)),
        )

    def _tried(self, shape: Sequence[int]) -> tuple[Predictive, Predictive]:
        """The predictions of a datum alone and behind others: they differ where a network looks at the whole batch."""
        data = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
        try:
            with warnings.catch_warnings(action="ignore", category=LeanBayesWarning):
                return self._predicted(Ask(2, 0), data[-1:]), self._predicted(Ask(2, 0), data)
        except Exception as error:  # a network may raise anything
            message = str(error)[:300]
            raise PredictionError(f"serve: expected a model for data of shape {tuple(shape)}; {message}") from error

    def _predicted(self, ask: Ask, x: Tensor) -> Predictive:
        if ask.width != self.width:
            set_width_(self.model, self.usual_width if ask.width is None else ask.width)
            self.width = ask.width
        return predict(self.model, x, ask.samples, ask.seed, task=self.task, keep_samples=ask.draws)

    def __call__(self, ask: Ask, parts: Sequence[Tensor]) -> list[list[Answer]]:
        """The answers to every part of a batch, one for each datum."""
        found = self._predicted(ask, torch.cat(list(parts)))
        made = answers(found, self.classes, self.scale, draws=ask.draws)
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return [made[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]


def described(card: Card) -> dict[str, Any]:
    """A card as JSON has it."""
    return dataclasses.asdict(card)
