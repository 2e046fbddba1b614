"""One call that asks a model all the questions: predict once per batch, feed the streams, fill the Evaluation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import batches
from ..errors import EvaluationError, LeanBayesError
from . import checks
from . import ood as out_of_domain
from .classification import Classification
from .regression import LEVELS, Regression
from .result import Evaluation
from .settings import reproduction
from .streams import Points

if TYPE_CHECKING:
    from ..likelihoods import Likelihood
    from ..predict import Predictive

ROWS = 256
"""Rows a batch of tensors that came without a loader."""


def evaluate(
    model: nn.Module,
    loader: Any,
    *,
    task: Any = None,
    samples: int = 32,
    seed: int = 0,
    ood: Mapping[str, Any] | None = None,
    mean_only: bool = False,
    chunk: int | None = None,
    history: Iterable[Mapping[str, Any]] | None = None,
    progress: bool = True,
    name: str | None = None,
    bins: int = 20,
    min_count: int = 6,
    adaptive: bool = False,
    levels: tuple[float, ...] = LEVELS,
    ignore_index: int | None = None,
) -> Evaluation:
    """Ask a model, Bayesian or not, whether it is right and whether it knows when it is not.

    loader: batches of (inputs, targets); a pair of tensors, or a Dataset, will do.
    task: as in `predict`; None means what the model was fitted for.
    samples, seed, mean_only, chunk: as in `predict`, which is called once per batch.
    ood: loaders of data that the model should doubt, by name (targets are not looked at).
    history: the rows of training, for the curves of the report. name: what tables call the model.
    bins, min_count, adaptive: the binning of ECE and MCE (`reliability`); levels: the nominal levels of the intervals.
    ignore_index: the label that does not count (the border of a segmentation).

    Memory does not grow with the data, but for three scores a point where ``ood`` is given.

    >>> import leanbayes as lb
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> result = lb.evaluate(nn.Linear(4, 3), (x, y), task="classification", samples=1, progress=False)
    >>> sorted(result.metrics)
    ['accuracy', 'brier', 'confidence', 'ece', 'mce', 'nll']
    """
    from ..predict import predict, resolve_task

    sets, rows = _check_ood(ood), _history(history)
    meaning = resolve_task(model, task)
    answers = _Answers(meaning, bins, min_count, adaptive, levels, ignore_index)
    options: dict[str, Any] = {"samples": samples, "seed": seed, "chunk": chunk, "mean_only": mean_only}
    inside, outside = Points(), {label: Points() for label in sets}
    seconds, engine = 0.0, ""
    costs: dict[str, float] = {}
    trouble: list[str] = []
    with _progress(progress) as track:
        for batch in track(loader, "test data"):
            inputs, targets = batches.split(batch)
            if targets is None:
                raise EvaluationError(
                    f"expected batches of (inputs, targets), received {type(batch).__name__} without targets; "
                    f"data without labels can only be given as ood={{name: loader}}"
                )
            if batches.size(inputs) == 0:
                continue
            if not answers.count:  # at the start, not after an hour of predictions
                costs, trouble = _cost(model, batches.rows(inputs, 0, 1))
            began = time.perf_counter()
            pred = predict(model, inputs, task=meaning, **options)
            seconds += time.perf_counter() - began
            engine = pred.engine
            answers.update(pred, targets)
            if sets:
                inside.update(**_scores(pred, answers.count - len(pred), "test data"))
        checks.nonempty(answers.count, "loader")
        for label, other in sets.items():
            for batch in track(other, f"ood: {label}"):
                inputs, _ = batches.split(batch)
                if batches.size(inputs):
                    pred, points = predict(model, inputs, task=meaning, **options), outside[label]
                    points.update(**_scores(pred, points.count, f"ood[{label!r}]"))
            checks.nonempty(outside[label].count, f"ood[{label!r}]")

    ranks, histograms = out_of_domain.compare_sets(inside.compute(), {k: v.compute() for k, v in outside.items()})
    costs["predict_seconds"] = seconds / answers.count
    if trained := [row["seconds"] for row in rows if isinstance(row.get("seconds"), (int, float))]:
        costs["train_seconds"] = float(sum(trained))
    settings = reproduction(
        {"task": meaning.task, "likelihood": str(meaning), **options, **answers.settings, "engine": engine}
    )
    return Evaluation(
        name=name or type(model).__name__,
        task=meaning.task,
        count=answers.count,
        metrics=answers.stream.compute() | ranks,
        curves=answers.stream.curves() | ({"ood": histograms} if histograms else {}),
        cost=costs,
        settings=settings | ({"ood": {k: v.count for k, v in outside.items()}} if sets else {}),
        history=rows,
        notes=answers.notes() + trouble,
    )


class _Answers:
    """The stream that fits the task, and how a Predictive is fed to it."""

    stream: Classification | Regression

    def __init__(
        self,
        meaning: Likelihood,
        bins: int,
        min_count: int,
        adaptive: bool,
        levels: tuple[float, ...],
        ignore: int | None,
    ) -> None:
        self.count = 0
        if meaning.task == "regression":
            self.stream = Regression(levels=levels)
            self.settings: dict[str, Any] = {"levels": list(levels)}
        elif meaning.task in ("classification", "segmentation"):
            self.settings = {"bins": bins, "min_count": min_count, "adaptive": adaptive}
            ignore = ignore if ignore is not None else getattr(meaning, "ignore_index", None)
            self.stream = Classification(bins=bins, min_count=min_count, adaptive=adaptive, ignore_index=ignore)
        else:
            raise EvaluationError(
                f"expected a task of classification, segmentation or regression, received {meaning.task!r}; "
                f"say which metrics apply: evaluate(..., task='regression')"
            )

    def update(self, pred: Predictive, targets: Any) -> None:
        """Add a batch."""
        if isinstance(self.stream, Regression):
            checks.regression(targets, self.count, mean=pred.mean)  # before anything reshapes them
            log_prob = pred.log_prob(targets)
            intervals = {level: pred.interval(level) for level in self.stream.levels}
            self.stream.update(targets, mean=pred.mean, log_prob=log_prob, intervals=intervals)
        else:
            self.stream.update(pred.probs, targets)
        self.count += len(pred)

    def notes(self) -> list[str]:
        """What a reader should know."""
        return self.stream.notes() if isinstance(self.stream, Classification) else []


def stream(data: Any) -> Iterator[Any]:
    """Batches of whatever holds data: a loader, a list of batches, a Dataset, a tensor, or a tuple of tensors.

    >>> [len(x) for x, y in stream((torch.zeros(600, 2), torch.zeros(600)))]
    [256, 256, 88]
    """
    if isinstance(data, Tensor) or (isinstance(data, tuple) and data and all(isinstance(t, Tensor) for t in data)):
        parts = data if isinstance(data, tuple) else (data,)
        if len({len(part) for part in parts}) > 1:
            raise EvaluationError(
                f"expected as many targets as inputs, received {' and '.join(str(len(part)) for part in parts)} rows"
            )
        return (batches.rows(data, at, at + ROWS) for at in range(0, len(parts[0]), ROWS))
    if isinstance(data, torch.utils.data.Dataset) and not isinstance(data, torch.utils.data.IterableDataset):
        return iter(torch.utils.data.DataLoader(data, batch_size=ROWS))
    try:
        return iter(data)
    except TypeError:
        raise EvaluationError(
            f"expected a loader, a Dataset or a tuple of tensors, received {type(data).__name__}; "
            f"try torch.utils.data.DataLoader(dataset, batch_size=256)"
        ) from None


def _scores(pred: Predictive, start: int, name: str) -> dict[str, Tensor]:
    scores = out_of_domain.scores(pred)
    for score, values in scores.items():
        checks.finite(values, f"{score} of {name}", start)
    return scores


def _check_ood(ood: Mapping[str, Any] | None) -> dict[str, Any]:
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        raise EvaluationError(
            f"ood: expected loaders by name, received {type(ood).__name__}; for example ood={{'noise': loader}}"
        )
    return {str(name): loader for name, loader in ood.items()}


def _history(history: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Plain rows: numbers and words, as JSON can hold them."""
    rows = [dict(row) for row in history or ()]
    return [{str(k): v for k, v in row.items() if isinstance(v, (int, float, str, type(None)))} for row in rows]


def _cost(model: nn.Module, example: Any) -> tuple[dict[str, float], list[str]]:
    """Parameters, MACs and bytes; a note where they cannot be counted, since quality can be measured all the same."""
    from ..cost import cost

    try:
        found = cost(model, example)
    except LeanBayesError as error:
        return {}, [f"The cost could not be counted: {error}"]
    return {key: getattr(found, key) for key in ("parameters", "active_parameters", "macs", "bytes")}, []


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Any]:
    """Yield ``track(data, text)``, which goes through batches and shows how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:

        def track(data: Any, text: str) -> Iterable[Any]:
            try:
                total = len(data) if not isinstance(data, (Tensor, tuple, torch.utils.data.Dataset)) else None
            except TypeError:
                total = None
            return bar.track(stream(data), total=total, description=text)

        yield track
