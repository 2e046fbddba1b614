"""The result of an evaluation: plain numbers and lists that can be printed, compared, saved and loaded."""

from __future__ import annotations

import abc
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .. import checks, files
from ..errors import EvaluationError
from ..optional import require
from ..report.html import page
from ..report.table import as_text, comparison_table, evaluation_table
from . import plain
from .metrics.intervals import Difference, difference, percentile

if TYPE_CHECKING:
    from rich.console import RenderableType


class _Result(abc.ABC):
    """What prints as a table, and can be saved as JSON and as a page."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The JSON form; what is not finite becomes None."""

    @classmethod
    @abc.abstractmethod
    def from_dict(cls, data: Any) -> Self:
        """The result that `to_dict` wrote; anything foreign is refused."""

    @abc.abstractmethod
    def _models(self) -> tuple[Evaluation, ...]:
        """The evaluations that a page shows."""

    @abc.abstractmethod
    def __rich__(self) -> RenderableType: ...

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON form, whole or not at all."""
        return plain.save(path, self.to_dict())

    @classmethod
    def load_json(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save_json` wrote."""
        return cls.from_dict(plain.load(path))

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page: summary, table, plots, cost, and how to get it again."""
        path = checks.path("path", path, error=EvaluationError)
        require("matplotlib", "plots", "save_html")
        return files.write_text(path, page(self._models()))


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation(_Result):
    """One model on one data set.

    metrics: flat, name to float: accuracy, nll, brier, confidence, ece, mce; rmse, mae, log_density, coverage.0.9,
    width.0.9; ood.SET.SCORE.auroc, .aupr, .fpr95. Fractions, not percentages; NaN where undefined (a note gives the
    reason).
    curves: what the report draws, as plain lists. cost: parameters, bytes, MACs, seconds. settings: what it takes to
    get the same numbers again. history: the rows of training, one per epoch. notes: caveats in plain words.
    replicates: metrics on resampled data (`bootstrap.replicates`), which `interval` reads; six digits are saved.

    >>> result = Evaluation("mlp", "classification", 100, {"accuracy": 0.93, "nll": 0.21})
    >>> result["accuracy"]
    0.93
    >>> Evaluation.from_dict(result.to_dict()) == result
    True
    """

    name: str
    task: str
    count: int
    metrics: dict[str, float]
    curves: dict[str, Any] = dataclasses.field(default_factory=dict)
    cost: dict[str, float] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    replicates: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def __getitem__(self, metric: str) -> float:
        """One metric by its name."""
        if not isinstance(metric, str) or metric not in self.metrics:
            raise EvaluationError(f"expected one of {', '.join(self.metrics)}; received {checks.short(metric)}")
        return self.metrics[metric]

    def difference(self, metric: str, other: Evaluation, level: float = 0.95) -> Difference | None:
        """How much greater a metric is than that of another model; see `Comparison.difference`."""
        settings = self.settings, other.settings
        paired = self.count == other.count and _same(*settings, "data")
        paired = paired and settings[0].get("groups") == settings[1].get("groups")
        if paired and metric.startswith("ood."):
            label = metric.removeprefix("ood.").rsplit(".", 2)[0]  # the name of a set may hold dots
            paired = _same(settings[0].get("ood") or {}, settings[1].get("ood") or {}, label)
        draws = self.replicates.get(metric, ()), other.replicates.get(metric, ())
        return difference(self[metric] - other[metric], *draws, paired=paired, level=level)

    def interval(self, metric: str, level: float = 0.95) -> tuple[float, float] | None:
        """The confidence interval of a metric: bootstrap percentiles; None without replicates.

        >>> Evaluation("mlp", "regression", 9, {"mae": 1.0}, replicates={"mae": [0.8, 1.0, 1.2]}).interval("mae", 0.5)
        (0.9, 1.1)
        """
        value = self[metric]
        return None if math.isnan(value) else percentile(self.replicates.get(metric, ()), level, value=value)

    def __rich__(self) -> RenderableType:
        return evaluation_table(self)

    def _models(self) -> tuple[Evaluation, ...]:
        return (self,)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; what is not finite becomes None."""
        fields = {f.name: vars(self)[f.name] for f in dataclasses.fields(self)}
        fields["replicates"] = {k: [float(f"{v:.6g}") for v in values] for k, values in self.replicates.items()}
        return {"kind": "Evaluation", "version": plain.VERSION, **plain.plain(fields)}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The evaluation that `to_dict` wrote; anything foreign is refused."""
        fields = plain.opened(data, "Evaluation")
        hints = {"name": str, "task": str, "count": int, "metrics": dict, "curves": dict, "cost": dict}
        hints |= {"settings": dict, "history": list, "notes": list, "replicates": dict}
        if unknown := sorted(fields.keys() - hints.keys()):
            raise EvaluationError(f"Evaluation: unknown field {unknown[0]!r}; known: {', '.join(hints)}")
        for field in ("name", "task", "count", "metrics"):
            if field not in fields:
                raise EvaluationError(f"Evaluation: expected a field {field!r}, received {', '.join(fields) or 'none'}")
        for field, value in fields.items():
            if not isinstance(value, hints[field]) or isinstance(value, bool):
                raise EvaluationError(
                    f"Evaluation.{field}: expected {hints[field].__name__}, received {type(value).__name__}"
                )
        metrics = dict(zip(fields["metrics"], plain.numbers("metrics", fields["metrics"]), strict=True))
        replicates = {}
        for name, values in fields.get("replicates", {}).items():
            if not isinstance(values, list):
                raise EvaluationError(
                    f"Evaluation.replicates[{name!r}]: expected list, received {type(values).__name__}"
                )
            replicates[name] = plain.numbers(f"replicates[{name!r}]", dict(enumerate(values)))
        return cls(**{**fields, "metrics": metrics, "replicates": replicates})


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(_Result):
    """Several models in one table and one page; made by `compare`."""

    evaluations: tuple[Evaluation, ...]

    def __iter__(self) -> Iterator[Evaluation]:
        return iter(self.evaluations)

    def __len__(self) -> int:
        return len(self.evaluations)

    def __getitem__(self, name: str) -> Evaluation:
        """One evaluation by its name."""
        for evaluation in self.evaluations:
            if evaluation.name == name:
                return evaluation
        raise EvaluationError(f"expected one of {', '.join(e.name for e in self)}; received {checks.short(name)}")

    def difference(self, metric: str, a: str, b: str, level: float = 0.95) -> Difference | None:
        """How much greater a metric of model ``a`` is than of ``b``, and whether that is within noise.

        Paired where both were evaluated on the same data (count and ``settings["data"]``; for ``ood.SET`` the set too):
        then both saw the same resampled data. None where a model has no replicates of the metric.
        """
        return self[a].difference(metric, self[b], level)

    def __rich__(self) -> RenderableType:
        return comparison_table(self.evaluations)

    def _models(self) -> tuple[Evaluation, ...]:
        return self.evaluations

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": "Comparison", "version": plain.VERSION, "evaluations": [e.to_dict() for e in self]}

    @classmethod
    def from_dict(cls, data: Any) -> Comparison:
        """The comparison that `to_dict` wrote; anything foreign is refused."""
        rows = plain.opened(data, "Comparison").get("evaluations")
        if not isinstance(rows, list):
            raise EvaluationError(f"Comparison.evaluations: expected list, received {type(rows).__name__}")
        return compare([Evaluation.from_dict(row) for row in rows])


def compare(evaluations: Iterable[Evaluation] | Mapping[str, Evaluation]) -> Comparison:
    """Put evaluations side by side: a list of them, or a mapping that names them.

    >>> a = Evaluation("a", "classification", 100, {"accuracy": 0.93})
    >>> b = Evaluation("b", "classification", 100, {"accuracy": 0.95})
    >>> [e.name for e in compare([a, b])]
    ['a', 'b']
    """
    hint = "try leanbayes.evaluate(...)"

    def row(name: str, value: Any) -> Evaluation:
        return checks.instance(name, value, Evaluation, "an Evaluation", error=EvaluationError, hint=hint)

    if isinstance(evaluations, Mapping):
        named = {str(name): row(f"evaluations[{name!r}]", e) for name, e in evaluations.items()}
        evaluations = [dataclasses.replace(e, name=name) for name, e in named.items()]
    rows = checks.iterable_of("evaluations", evaluations, "Evaluations", row, error=EvaluationError, hint=hint)
    if not rows:
        raise EvaluationError("expected at least one Evaluation, received none; make one with leanbayes.evaluate")
    if len({row.task for row in rows}) > 1:
        raise EvaluationError(
            f"expected evaluations of one task, received {', '.join(sorted({row.task for row in rows}))}; "
            f"compare each task by itself"
        )
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise EvaluationError(
            f"expected distinct names, received {twice[0]!r} twice; "
            f"name them: compare({{'first': a, 'second': b}}) or evaluate(..., name=...)"
        )
    return Comparison(tuple(rows))


def _same(first: Mapping[str, Any], second: Mapping[str, Any], key: str) -> bool:
    """Whether both know a value, and it is the same."""
    return first.get(key) is not None and first[key] == second.get(key)
