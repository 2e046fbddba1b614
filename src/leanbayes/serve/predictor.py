"""The model behind a server: what it takes, and its answers to a batch of requests."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..compress.width import set_width_
from ..data.tables import Table
from ..errors import LeanBayesWarning, PredictionError
from ..exports.reading import ExportedModel
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
    may choose one. coverage: of its conformal sets, with so many samples (conformal_samples). samples, seed: those of a
    model that has them built in. together: whether data may be predicted in one batch with those of other requests.
    """

    task: str
    shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    has_width: bool = False
    coverage: float | None = None
    conformal_samples: int | None = None
    samples: int | None = None
    seed: int | None = None
    together: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)


class TorchModel:
    """`leanbayes.predict` of a model, at the width that is asked for."""

    def __init__(self, model: nn.Module, task: str | None = None) -> None:
        self.model, self.task = model.eval(), task
        units = ordered(model)
        self.has_width = bool(units)
        self.usual: Any = {unit.name: unit.fraction(unit.width) for unit in units if unit.width} or 1.0
        self.width: float | None = None

    def __call__(self, ask: Ask, x: Tensor) -> Predictive:
        """The prediction of a batch."""
        if ask.width != self.width:
            set_width_(self.model, self.usual if ask.width is None else ask.width)
            self.width = ask.width
        return predict(self.model, x, ask.samples, ask.seed, task=self.task, keep_samples=ask.draws)


class Exported:
    """A graph that `leanbayes.export` wrote: its samples are in the file."""

    has_width = False

    def __init__(self, model: ExportedModel) -> None:
        self.model = model

    def __call__(self, ask: Ask, x: Tensor) -> Predictive:
        """The prediction of a batch."""
        return self.model.predict(x)


class Predictor:
    """Answers to batches of requests: those of a seed, whoever else is in the batch.

    prepare: from original units to what the network takes. shape: of one datum. classes: their names, where the model
    does not know them. scale: mean and standard deviation of a regression's target.
    """

    def __init__(
        self,
        model: TorchModel | Exported,
        prepare: Callable[[np.ndarray | Table], Tensor],
        shape: Sequence[int],
        *,
        classes: Sequence[str] = (),
        columns: Sequence[str] = (),
        scale: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.model, self.prepare, self.scale = model, prepare, scale
        one, several = self._tried(shape)
        if one.task not in ("classification", "regression"):
            raise PredictionError(f"serve: expected a model of classes or numbers, received one of {one.task}")
        named = tuple(classes) or one.classes
        if one.task == "classification":
            named = named or tuple(map(str, range(one.mean.shape[1])))
        built_in = isinstance(model, Exported)
        self.card = Card(
            one.task,
            tuple(shape),
            named if one.task == "classification" else (),
            tuple(columns),
            model.has_width,
            None if one.conformal is None else one.conformal.coverage,
            None if one.conformal is None else one.conformal.samples,
            int(one.counts.max()) if built_in else None,
            model.model.document.get("seed") if isinstance(model, Exported) else None,
            bool(torch.allclose(one.mean[0], several.mean[-1], rtol=TOGETHER, atol=TOGETHER)),
        )

    def _tried(self, shape: Sequence[int]) -> tuple[Predictive, Predictive]:
        """The predictions of a datum alone and behind others: they differ where a network looks at the whole batch."""
        data = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
        try:
            with warnings.catch_warnings(action="ignore", category=LeanBayesWarning):
                return self.model(Ask(2, 0), data[-1:]), self.model(Ask(2, 0), data)
        except Exception as error:  # a network may raise anything
            message = str(error)[:300]
            raise PredictionError(f"serve: expected a model for data of shape {tuple(shape)}; {message}") from error

    def __call__(self, ask: Ask, parts: Sequence[Tensor]) -> list[list[Answer]]:
        """The answers to every part of a batch, one for each datum."""
        found = self.model(ask, torch.cat(list(parts)))
        made = answers(found, self.card.classes, self.scale, draws=ask.draws)
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return [made[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]
