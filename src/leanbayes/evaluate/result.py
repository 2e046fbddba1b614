"""What an evaluation found: plain numbers and lists that print, compare, and survive a trip through JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import EvaluationError

if TYPE_CHECKING:
    from rich.console import RenderableType

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One model on one data set.

    metrics: flat, name to float: accuracy, nll, brier, confidence, ece, mce; rmse, mae, log_density, coverage.0.9,
    width.0.9; ood.SET.SCORE.auroc, .aupr, .fpr95. Fractions, not percentages; NaN where undefined (a note says why).
    curves: what the report draws, as plain lists. cost: parameters, bytes, MACs, seconds. settings: what it takes to
    get the same numbers again. history: the rows of training, one per epoch. notes: caveats in plain words.

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

    def __getitem__(self, metric: str) -> float:
        """One metric by its name."""
        if metric not in self.metrics:
            raise EvaluationError(f"expected one of {', '.join(self.metrics)}; received {metric!r}")
        return self.metrics[metric]

    def __str__(self) -> str:
        from ..report.table import as_text, evaluation_table

        return as_text(evaluation_table(self))

    def __rich__(self) -> RenderableType:
        from ..report.table import evaluation_table

        return evaluation_table(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; what is not finite becomes None."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"kind": "Evaluation", "version": VERSION, **_plain(fields)}

    @classmethod
    def from_dict(cls, data: Any) -> Evaluation:
        """The evaluation that `to_dict` wrote; anything foreign is refused."""
        fields = _open(data, "Evaluation")
        hints = {"name": str, "task": str, "count": int, "metrics": dict, "curves": dict, "cost": dict}
        hints |= {"settings": dict, "history": list, "notes": list}
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
        for name, value in fields["metrics"].items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise EvaluationError(
                    f"Evaluation.metrics[{name!r}]: expected a number, received {type(value).__name__}"
                )
        metrics = {k: math.nan if v is None else float(v) for k, v in fields["metrics"].items()}
        return cls(**{**fields, "metrics": metrics})

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON form, whole or not at all."""
        return _save_json(path, self.to_dict())

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page: summary, table, plots, cost, and how to get it again."""
        from ..report.html import page

        return files.write_text(path, page([self]))

    @classmethod
    def load_json(cls, path: str | os.PathLike[str]) -> Evaluation:
        """Read what `save_json` wrote."""
        return cls.from_dict(_load_json(path))


@dataclasses.dataclass(frozen=True)
class Comparison:
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
        raise EvaluationError(f"expected one of {', '.join(e.name for e in self)}; received {name!r}")

    def __str__(self) -> str:
        from ..report.table import as_text, comparison_table

        return as_text(comparison_table(self.evaluations))

    def __rich__(self) -> RenderableType:
        from ..report.table import comparison_table

        return comparison_table(self.evaluations)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": "Comparison", "version": VERSION, "evaluations": [e.to_dict() for e in self]}

    @classmethod
    def from_dict(cls, data: Any) -> Comparison:
        """The comparison that `to_dict` wrote; anything foreign is refused."""
        rows = _open(data, "Comparison").get("evaluations")
        if not isinstance(rows, list):
            raise EvaluationError(f"Comparison.evaluations: expected list, received {type(rows).__name__}")
        return compare([Evaluation.from_dict(row) for row in rows])

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON form, whole or not at all."""
        return _save_json(path, self.to_dict())

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained HTML page with all models side by side."""
        from ..report.html import page

        return files.write_text(path, page(self.evaluations))

    @classmethod
    def load_json(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read what `save_json` wrote."""
        return cls.from_dict(_load_json(path))


def compare(evaluations: Iterable[Evaluation] | Mapping[str, Evaluation]) -> Comparison:
    """Put evaluations side by side: a list of them, or a mapping that names them.

    >>> a = Evaluation("a", "classification", 100, {"accuracy": 0.93})
    >>> b = Evaluation("b", "classification", 100, {"accuracy": 0.95})
    >>> [e.name for e in compare([a, b])]
    ['a', 'b']
    """
    if isinstance(evaluations, Mapping):
        evaluations = [dataclasses.replace(e, name=str(name)) for name, e in evaluations.items()]
    rows = tuple(evaluations)
    if not rows:
        raise EvaluationError("expected at least one Evaluation, received none; make one with leanbayes.evaluate")
    for row in rows:
        if not isinstance(row, Evaluation):
            raise EvaluationError(f"expected Evaluations, received {type(row).__name__}; try leanbayes.evaluate(...)")
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
    return Comparison(rows)


def _open(data: Any, kind: str) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("kind") != kind:
        found = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise EvaluationError(f"expected the JSON form of one {kind}, received {found!r}")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise EvaluationError(f"{kind}: expected version {VERSION} or older, received {version!r}; upgrade leanbayes")
    return {k: v for k, v in data.items() if k not in ("kind", "version")}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):  # not `type is float`: numpy's float64 is one
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise EvaluationError(f"expected a plain value, received {type(value).__name__}; convert it with float() or str()")


def _save_json(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    return files.write_text(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def _load_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise EvaluationError(f"cannot read {str(path)!r} ({error.strerror})") from error
    except ValueError as error:
        raise EvaluationError(f"expected JSON in {str(path)!r}, received something else ({error})") from error
