"""One table of several models, of one model at several sample counts, or of its inference procedures."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from .. import checks
from ..checks import iterable_of, one_of, path, whole_number
from ..errors import EvaluationError, PredictionError
from .result import Comparison, Evaluation, compare
from .run import evaluate

PROCEDURES = ("stochastic", "deterministic", "ensemble")
"""Of "Variance Networks" (Neklyudov et al. 2019, section 3): one sample; the means; the average over samples."""

Setting = Callable[[nn.Module], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a comparison: a name, a model, and options of its evaluation.

    options: of `evaluate`; they take precedence over those of all rows. within: a context manager that changes the
    model during its evaluation (such as the width of a nested one); by default nothing is changed.
    """

    name: str
    model: nn.Module
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    within: Setting = contextlib.nullcontext

    def evaluate(self, loader: Any, **options: Any) -> Evaluation:
        """Evaluate the model of this row."""
        with self.within(self.model):
            return evaluate(self.model, loader, **{**options, **self.options, "name": self.name})


def evaluate_each(
    models: Mapping[str, nn.Module] | nn.Module,
    loader: Any,
    *,
    samples: int | Sequence[int] = 32,
    procedures: Sequence[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Evaluate several models, or one model in several ways, on the same data.

    models: by name, or a single one. samples: one number, or several with a row for each.
    procedures: of "stochastic" (one sample), "deterministic" (one pass at the means) and "ensemble" (all samples): a
    row for each. One that a model cannot do (the means of a network that has none) becomes a note.
    resume: as in `evaluate`; if there are several rows, each has its own file: run.eval becomes run.NAME.eval.
    options: other arguments of `evaluate`.

    >>> import torch
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> x, y = torch.randn(32, 4), torch.randint(3, (32,))
    >>> both = evaluate_each(model, (x, y), samples=(1, 8), task="classification", progress=False)
    >>> [e.name for e in both]
    ['1 sample', '8 samples']
    """
    return evaluate_rows(rows(models, samples, procedures), loader, resume=resume, **options)


def evaluate_rows(
    entries: Sequence[Row], loader: Any, *, resume: str | os.PathLike[str] | None = None, **options: Any
) -> Comparison:
    """Evaluate rows of any kind; a row that its model does not support becomes a note of the first result."""
    if "name" in options:
        raise EvaluationError("name: expected none, since every row has its own; name the models instead")
    if resume is not None:
        resume = path("resume", resume, error=EvaluationError)
    if isinstance(loader, Iterator):
        loader = list(loader)  # every row iterates over it
    found, missing = [], []
    for row in entries:
        try:
            file = resume if len(entries) == 1 else _file(resume, row.name)
            found.append(row.evaluate(loader, resume=file, **options))
        except PredictionError as error:
            if not row.options.get("mean_only"):
                raise
            missing.append(f"{row.name} is missing: {error}")
    if not found:
        raise EvaluationError(f"expected at least one row that the model can do, received none; {missing[0]}")
    first = dataclasses.replace(found[0], notes=[*found[0].notes, *missing])
    return compare([first, *found[1:]])


def rows(
    models: Mapping[str, nn.Module] | nn.Module, samples: int | Sequence[int], procedures: Sequence[str] | None
) -> list[Row]:
    """A row for every model and every way of predicting, each with a name of its own.

    >>> [row.name for row in rows({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}, 8, ("stochastic", "ensemble"))]
    ['a, stochastic', 'a, ensemble', 'b, stochastic', 'b, ensemble']
    """
    if not isinstance(models, (nn.Module, Mapping)) or isinstance(models, (nn.ModuleDict,)):
        raise EvaluationError(
            f"models: expected an nn.Module or a mapping of them by name, received {type(models).__name__}; "
            f"for example {{'plain': a, 'bayesian': b}}"
        )
    named: dict[str, nn.Module] = (
        {"": models} if isinstance(models, nn.Module) else {str(k): m for k, m in models.items()}
    )
    for name, model in named.items():
        checks.module(f"models[{name!r}]", model, error=EvaluationError)
    if not named:
        raise EvaluationError("models: expected at least one, received none")
    ways = _ways(samples, procedures)
    return [
        Row(", ".join(filter(None, (name, way))) or type(model).__name__, model, dict(options))
        for name, model in named.items()
        for way, options in ways
    ]


def _ways(samples: int | Sequence[int], procedures: Sequence[str] | None) -> list[tuple[str, dict[str, Any]]]:
    several = [samples] if isinstance(samples, numbers.Integral) else samples
    count = partial(whole_number, error=EvaluationError)
    counts = iterable_of("samples", several, "whole numbers", count, error=EvaluationError, hint="try (1, 8, 32)")
    if not counts:
        raise EvaluationError("samples: expected at least one number, received none; try (1, 8, 32)")
    if len(set(counts)) < len(counts):
        raise EvaluationError(f"samples: expected each number once, received {checks.short(samples)}")
    if procedures is None:
        named = {n: f"{n} sample{'' if n == 1 else 's'}" if len(counts) > 1 else "" for n in counts}
        return [(named[n], {"samples": n}) for n in counts]
    check = partial(one_of, choices=PROCEDURES, error=EvaluationError)
    procedures = iterable_of("procedures", procedures, "procedures", check, error=EvaluationError)
    if not procedures:
        raise EvaluationError(f"procedures: expected some of {', '.join(PROCEDURES)}, received none")
    ways: list[tuple[str, dict[str, Any]]] = []
    for procedure in dict.fromkeys(procedures):
        match procedure:
            case "stochastic":
                ways.append((procedure, {"samples": 1}))
            case "deterministic":
                ways.append((procedure, {"samples": 1, "mean_only": True}))
            case _:
                ways += [(f"{procedure} of {n}" if len(counts) > 1 else procedure, {"samples": n}) for n in counts]
    return ways


def _file(path: str | os.PathLike[str] | None, row: str) -> Path | None:
    """The file of a row, in the folder of the given path.

    >>> _file("run.eval", "a, 8 samples").name
    'run.a-8-samples.eval'
    """
    if path is None:
        return None
    target = Path(path)
    return target.with_name(f"{target.stem}.{re.sub(r'[^0-9A-Za-z]+', '-', row).strip('-')}{target.suffix}")
