"""The stages of an evaluation: each evaluates the model on some data and returns plain numbers and tensors."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from .. import batches, feed, sampling
from ..costs import cost
from ..errors import EvaluationError, LeanBayesError
from ..fingerprint import Fingerprint
from ..likelihoods import Likelihood
from ..prediction import Predictive, predict
from ..prediction.draws import period
from . import temperature
from .annotated import Annotated, rows_at_once
from .attack import perturb
from .configs import Attack, Corruptions
from .conformalize import Coverage
from .corruption_sweep import corrupted
from .latency import latency
from .metrics import checks, ood as out_of_domain
from .metrics.classification import Classification
from .metrics.experts import as_votes, is_annotated
from .metrics.regression import Regression
from .metrics.streams import Points
from .pixels import Pixels
from .progress import Bar
from .resume import Outcome
from .spent import Spent

SLICE = 64
"""Data in a stage of an attack; an interruption loses one stage at most."""


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """A model, its likelihood and the options of its predictions: the same for every stage.

    options: of `predict`. binning: of the stream of a classification; levels: of that of a regression.
    """

    model: nn.Module
    likelihood: Likelihood
    options: dict[str, Any]
    binning: dict[str, Any]
    levels: tuple[float, ...]
    bar: Bar

    def __post_init__(self) -> None:
        if self.likelihood.task not in ("classification", "segmentation", "regression"):
            raise EvaluationError(
                f"expected a task of classification, segmentation or regression, received {self.likelihood.task!r}; "
                f"choose the metrics by the task: evaluate(..., task='regression')"
            )
        self.stream()  # ill-formed options are refused before the first prediction

    def predict(self, inputs: Any, likelihood: Likelihood | None = None, **options: Any) -> Predictive:
        """The predictive distribution of a batch."""
        pred = predict(self.model, inputs, task=likelihood or self.likelihood, **self.options, **options)
        self.bar.advance(len(pred))
        return pred

    def stream(self) -> Classification | Regression:
        """A new, empty stream of the metrics of the task."""
        if self.likelihood.task == "regression":
            return Regression(levels=self.levels)
        return Classification(**self.binning)

    def predictions(self, inputs: Any, targets: Any) -> Iterator[tuple[Any, Predictive, Any]]:
        """Yield (inputs, prediction, targets) of a batch, in pieces with all samples if experts annotated it."""
        rows = rows_at_once(targets, self.options["samples"]) if self.likelihood.task == "segmentation" else None
        if rows is None:
            yield inputs, self.predict(inputs), targets
            return
        for _, part, marked in feed.slices([(inputs, targets)], rows):
            yield part, self.predict(part, keep_samples=True), marked

    def is_exhaustive(self, pred: Predictive) -> bool:
        """Whether the samples are all that the model can predict: without noise, or members of an ensemble."""
        if pred.engine in ("mean", "deterministic"):
            return True
        sites = list(sampling.sites(self.model).values())  # none: a network that draws by itself
        return bool(sites) and period(sites, None) == int(pred.counts.max())

    def settings(self) -> dict[str, Any]:
        """The options that the numbers depend on."""
        by_task = {"levels": list(self.levels)} if self.likelihood.task == "regression" else dict(self.binning)
        by_task.pop("ignore_index", None)
        return {"task": self.likelihood.task, "likelihood": str(self.likelihood), **self.options, **by_task}


def evaluate_test_data(evaluator: Evaluator, loader: Any, *, scored: bool) -> Outcome:
    """The metrics, curves and points of the test data. scored: compute out-of-domain scores too."""
    stream, scores, coverage, spent = evaluator.stream(), Points(), Coverage(), Spent()
    annotated = Annotated(evaluator.binning["bins"], evaluator.binning["ignore_index"])
    count, seconds, engine, mark = 0, 0.0, "", Fingerprint()
    for inputs, targets in feed.labelled(loader):
        mark.add(inputs, targets)
        began = time.perf_counter()
        for part, pred, marked in evaluator.predictions(inputs, targets):
            seconds += time.perf_counter() - began
            engine = pred.engine
            add(stream, pred, marked, count)
            coverage.update(pred, marked)
            spent.update(pred)
            if evaluator.likelihood.task == "segmentation" and is_annotated(pred.probs, marked):
                annotated.update(count, part, pred, marked, exhaustive=evaluator.is_exhaustive(pred))
            if scored:
                scores.update(**_scores(pred, count, "test data"))
            count += len(pred)
            began = time.perf_counter()
    checks.nonempty(count, "loader")
    if annotated.count not in (0, count):
        raise EvaluationError(
            f"targets: expected masks by several annotators in all batches, received them in {annotated.count} of "
            f"{count} data; give them as bool, since integers in the shape of the probabilities may be votes"
        )
    covered, by_class = coverage.compute()
    experts = annotated.outcome()
    macs, by_stage = spent.compute()
    values = {
        "metrics": stream.compute() | covered,
        "curves": stream.curves() | by_class | by_stage,
        "cost": macs,
        "notes": [*(stream.notes() if isinstance(stream, Classification) else []), *experts.values.get("notes", [])],
        "annotators": experts.values.get("annotators", 0),
        "examples": experts.values.get("examples", []),
        "count": count,
        "seconds": seconds / count,
        "engine": engine,
        "data": str(mark),
    }
    tensors = {f"points/{name}": tensor.float() for name, tensor in _points(evaluator, stream).items()}
    tensors |= experts.tensors
    return Outcome(values, tensors | {f"scores/{name}": tensor.float() for name, tensor in scores.compute().items()})


def score_ood_data(evaluator: Evaluator, name: str, loader: Any) -> Outcome:
    """The out-of-domain scores of every datum of an out-of-domain data set."""
    points = Points()
    for batch in feed.stream(loader):
        inputs, _ = batches.split(batch)
        if batches.size(inputs):
            points.update(**_scores(evaluator.predict(inputs), points.count, f"ood[{name!r}]"))
    checks.nonempty(points.count, f"ood[{name!r}]")
    return Outcome({"count": points.count}, {key: tensor.float() for key, tensor in points.compute().items()})


def evaluate_corrupted(
    evaluator: Evaluator, loader: Any, name: str, severity: int, config: Corruptions, pixels: Pixels
) -> Outcome:
    """The metrics under one corruption at one severity."""
    stream, count = _streamed(evaluator, corrupted(feed.stream(loader), name, severity, config, pixels))
    checks.nonempty(count, f"{name} at severity {severity}")
    metrics = stream.compute()
    chosen = {key: metrics[key] for key in ("accuracy", "nll", "ece")}
    return Outcome({"corruption": name, "severity": severity, "count": count, **chosen})


def attack_stages(evaluator: Evaluator, loader: Any, config: Attack, pixels: Pixels) -> Iterator[tuple[str, Any]]:
    """Yield the name and the work of each stage of an attack, one for every slice of the data."""
    for start, inputs, targets in feed.slices(loader, SLICE, config.limit):

        def work(start: int = start, inputs: Any = inputs, targets: Any = targets) -> Outcome:
            labels = targets.argmax(1) if targets.ndim > 1 else targets
            an_iteration = (
                len(labels) * work_of_attack(config, evaluator.options["samples"]) / max(config.iterations, 1)
            )
            options: dict[str, Any] = {
                "config": config,
                "pixels": pixels,
                "likelihood": evaluator.likelihood,
                "start": start,
            }
            trace = perturb(
                evaluator.model, inputs, labels, **options, tick=lambda _: evaluator.bar.advance(an_iteration)
            )
            fields = ("success", "correct", "entropy", "targets")
            return Outcome({"start": start}, {name: vars(trace)[name].cpu() for name in fields})

        yield f"attack {start}", work


def work_of_attack(config: Attack, samples: int) -> float:
    """The cost of an attack on one datum, in predictions of one: an iteration has a forward and a backward pass (about
    twice as expensive), and a prediction.
    """
    predicted = config.evaluate_samples or config.samples
    return config.iterations * (3 * config.samples + predicted) / samples


def evaluate_at_temperature(evaluator: Evaluator, held_out: Any, loader: Any) -> Outcome:
    """The metrics of the test data at the temperature that is fitted to held-out data."""
    options = {key: evaluator.options[key] for key in ("samples", "seed", "mean_only")}
    found, likelihood = temperature.held_out(
        evaluator.model, held_out, task=evaluator.likelihood, **options, progress=False
    )
    evaluator.bar.advance(feed.length(held_out) or 0)
    stream, _ = _streamed(evaluator, loader, likelihood)
    metrics = stream.compute()
    values = {"temperature": found, **{f"scaled.{key}": metrics[key] for key in ("nll", "ece", "brier")}}
    return Outcome({"metrics": values, "reliability": stream.curves()["reliability"]})


def costs(evaluator: Evaluator, inputs: Any) -> Outcome:
    """Parameters, MACs, bytes and the measured time of a prediction; a note instead if they cannot be counted."""
    found, notes = {}, []
    try:
        counted = cost(evaluator.model, batches.rows(inputs, 0, 1))
        found = {
            "parameters": counted.parameters,
            "active_parameters": counted.active_parameters,
            "macs": counted.macs,
            "bytes": counted.bytes,
        }
    except LeanBayesError as error:
        notes.append(f"The cost could not be counted: {error}")
    times, setting = latency(
        lambda x: predict(evaluator.model, x, task=evaluator.likelihood, **evaluator.options), inputs
    )
    return Outcome({"cost": found | times, "latency": setting, "notes": notes})


def _streamed(evaluator: Evaluator, loader: Any, likelihood: Likelihood | None = None) -> tuple[Any, int]:
    """The stream of metrics after the predictions of all data, and the number of data."""
    stream, count = evaluator.stream(), 0
    for inputs, targets in feed.labelled(loader):
        pred = evaluator.predict(inputs, likelihood)
        add(stream, pred, targets, count)
        count += len(pred)
    return stream, count


def add(stream: Classification | Regression, pred: Predictive, targets: Any, start: int) -> None:
    """Add a prediction to the stream of its task; ``start`` data came before."""
    if isinstance(stream, Regression):
        checks.regression(targets, start, mean=pred.mean)  # before anything reshapes them
        intervals = {level: pred.interval(level) for level in stream.levels}
        spread = {"pit": pred.cdf(targets), "crps": pred.crps(targets), "variance": pred.variance}
        stream.update(targets, mean=pred.mean, log_prob=pred.log_prob(targets), intervals=intervals, **spread)
    else:
        stream.update(pred.probs, as_votes(pred.probs, targets, stream.ignore_index))


def _points(evaluator: Evaluator, stream: Classification | Regression) -> dict[str, Tensor]:
    """A few scalars a datum; none for a segmentation, whose pixels are not independent."""
    return {} if evaluator.likelihood.task == "segmentation" else stream.points()


def _scores(pred: Predictive, start: int, name: str) -> dict[str, Tensor]:
    scores = out_of_domain.scores(pred)
    for score, values in scores.items():
        checks.finite(values, f"{score} of {name}", start)
    return scores
