"""`conformalize_`: prediction sets and intervals with a guarantee, from data that training has not seen."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks as arguments, likelihoods
from ..batches import accept
from ..conformal.config import CLASS_SCORES, INTERVAL_SCORES, Conformal, Score, least_count
from ..conformal.scores import class_scores, residual_scores, threshold, uniform_of
from ..convert import record
from ..errors import EvaluationError, LeanBayesWarning
from ..feed import labelled, length
from ..prediction import Predictive, predict, resolve_task
from .metrics import checks
from .progress import Bar


def conformalize_(
    model: nn.Module,
    loader: Any,
    coverage: float = 0.9,
    *,
    score: Score | None = None,
    class_conditional: bool = False,
    randomized: bool = False,
    allow_empty: bool = False,
    lam: float = 0.01,
    k_reg: int = 5,
    task: Any = None,
    samples: int = 32,
    seed: int = 0,
    mean_only: bool = False,
    progress: bool = True,
) -> Conformal:
    """Find thresholds on held-out data so that prediction sets or intervals hold the truth with this coverage.

    They are written on the model, as a temperature is: ``predict(...).prediction_sets`` and ``.prediction_intervals``
    use them from then on, `evaluate` reports what they cover, `save`, `load` and `extract` keep them, and `fit` drops
    them. For n held-out data the probability that a new datum of the same distribution is covered is at least
    ``coverage``, and at most coverage + 1 / (n + 1) where no scores are equal and sets may be empty: on average over
    held-out data and new data, not for each kind of input.

    loader: (inputs, targets) that neither training nor the choice of a model or a temperature has used.
    score: for classes "lac" (the default: the smallest sets), "aps" (larger where it is hard), "raps" (aps with fewer
        very large sets); for a regression "normalized" (the default: in units of the predictive standard deviation),
        "absolute" (the same width everywhere), "cqr" (moves both ends of the model's own interval); see
        `leanbayes.conformal.scores`.
    class_conditional: a threshold for every class, so that each is covered as often (Mondrian); it takes more data.
    randomized: smaller sets for aps and raps, with a number drawn for each datum (a hash of its probabilities).
    allow_empty: do not add the most probable class to sets that would be empty.
    lam, k_reg: the penalty of raps on every class beyond the k_reg most probable.
    task, samples, seed, mean_only: as in `predict`. Thresholds belong to one way of predicting; use it afterwards too.

    >>> import leanbayes as lb
    >>> x = torch.randn(500, 3)
    >>> y = torch.multinomial((2 * x).softmax(1), 1).squeeze(1)
    >>> model = nn.Identity()
    >>> found = conformalize_(model, (2 * x[:250], y[:250]), 0.9, task="classification", progress=False)
    >>> sets = lb.predict(model, 2 * x[250:]).prediction_sets
    >>> bool(sets.gather(1, y[250:, None]).float().mean() > 0.85)
    True
    """
    arguments.module("model", model, error=EvaluationError)
    coverage = arguments.number("coverage", coverage, above=0, below=1, error=EvaluationError)
    flags = {"class_conditional": class_conditional, "randomized": randomized, "allow_empty": allow_empty}
    for name, value in {**flags, "mean_only": mean_only, "progress": progress}.items():
        arguments.flag(name, value, error=EvaluationError)
    lam = arguments.number("lam", lam, at_least=0, error=EvaluationError)
    k_reg = arguments.whole_number("k_reg", k_reg, at_least=0, error=EvaluationError)
    loader = accept(loader, model, name="loader", error=EvaluationError)
    meaning = resolve_task(model, task)
    chosen = checked_score(score, meaning.task, class_conditional, randomized)
    options: dict[str, Any] = {"samples": samples, "seed": seed, "mean_only": mean_only, "task": meaning}
    found: list[Tensor] = []
    labels: list[Tensor] = []
    classes = used = 0
    with Bar(shown=progress) as bar:
        bar.expect(length(loader))
        bar.stage("conformal scores")
        for inputs, targets in labelled(loader):
            pred = predict(model, inputs, **options)
            used, classes = int(pred.counts.max()), pred.mean.shape[1] if meaning.task == "classification" else 0
            if classes:
                truth = _labels(pred, targets)
                uniform = uniform_of(pred.probs) if randomized else None
                each = class_scores(pred.probs, chosen, lam=lam, k_reg=k_reg, uniform=uniform)
                found.append(each.gather(1, truth[:, None].to(each.device)).cpu())
                labels.append(truth.cpu())
            else:
                found.append(_residuals(pred, targets, chosen, coverage))
            bar.advance(len(pred))
    checks.nonempty(sum(map(len, found)), "loader")
    columns = list(torch.cat(found).unbind(1))
    if class_conditional:
        truth = torch.cat(labels)
        columns = [columns[0][truth == label] for label in range(classes)]
    limits = tuple(threshold(column, coverage) for column in columns)
    _check_enough(limits, columns, coverage, class_conditional)
    result = Conformal(
        coverage, chosen, limits, tuple(map(len, columns)), used, _said(model, meaning), lam=lam, k_reg=k_reg, **flags
    )
    record.ensure(model).conformal = result
    return result


class Coverage:
    """How often conformal sets or intervals hold the truth, and how large they are, batch by batch."""

    def __init__(self) -> None:
        self.nominal = 0.0
        self.names: tuple[str, ...] = ()
        self.covered: list[Tensor] = []
        self.sizes: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, pred: Predictive, targets: Tensor) -> None:
        """Add a batch; nothing where the model has no thresholds for it."""
        if pred.conformal is None:
            return
        self.nominal = pred.conformal.coverage
        if pred.task == "classification":
            labels = checks.classified(pred.probs, targets).labels
            sets = pred.prediction_sets
            self.names = pred.classes or tuple(map(str, range(sets.shape[1])))
            self.covered.append(sets.gather(1, labels[:, None]).squeeze(1).cpu())
            self.sizes.append(sets.sum(1).double().cpu())
            self.labels.append(labels.cpu())
        else:
            low, high = pred.prediction_intervals
            y, low, high = checks.regression(targets, low=_finite(low), high=_finite(high))
            self.covered.append(((low <= y) & (y <= high)).cpu())
            self.sizes.append((high - low).cpu())

    def compute(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Metrics, and for classes a table of them by class; both empty where there were no thresholds."""
        if not self.covered:
            return {}, {}
        covered, sizes = torch.cat(self.covered).double(), torch.cat(self.sizes)
        size = "conformal.size" if self.labels else "conformal.width"
        metrics = {"conformal.coverage": float(covered.mean()), size: float(sizes.mean())}
        if not self.labels:
            return metrics, {}
        labels, rows = torch.cat(self.labels), []
        for label in labels.unique().tolist():
            own = labels == label
            rows.append(
                {
                    "class": self.names[label],
                    "count": int(own.sum()),
                    "coverage": float(covered[own].mean()),
                    "size": float(sizes[own].mean()),
                }
            )
        metrics["conformal.worst_class"] = min(row["coverage"] for row in rows)
        return metrics, {"conformal": {"nominal": self.nominal, "classes": rows}}


def checked_score(score: Any, task: str, class_conditional: bool = False, randomized: bool = False) -> Score:
    """The score, if it suits the task."""
    if task not in ("classification", "regression"):
        raise EvaluationError(
            f"conformalize_: expected a task of classification or regression, received {task}; the pixels of an image "
            "are not exchangeable with each other, so that no threshold over pixels carries a guarantee"
        )
    known = CLASS_SCORES if task == "classification" else INTERVAL_SCORES
    chosen: Score = arguments.one_of("score", known[0] if score is None else score, known, error=EvaluationError)
    if class_conditional and task == "regression":
        raise EvaluationError("class_conditional: expected a classification, received a regression; leave it out")
    if randomized and chosen not in ("aps", "raps"):
        raise EvaluationError(f"randomized: expected score='aps' or 'raps', received {chosen!r}; leave it out")
    return chosen


def _labels(pred: Predictive, targets: Any) -> Tensor:
    found = checks.classified(pred.probs, targets)
    if found.shares is not None:
        raise EvaluationError(
            f"conformalize_: expected one label a datum, received what several people said, {tuple(targets.shape)}; "
            "pass targets.argmax(1)"
        )
    return found.labels


def _residuals(pred: Predictive, targets: Any, score: Score, coverage: float) -> Tensor:
    (y, mean), spread = checks.regression(targets, mean=pred.mean), pred.spread(score, coverage)
    if isinstance(spread, tuple):
        return residual_scores(y, mean, (spread[0].reshape(y.shape), spread[1].reshape(y.shape)), score).cpu()
    if score == "normalized" and not bool((spread > 0).all()):
        raise EvaluationError(
            "score: expected a predictive standard deviation above 0 for 'normalized', received 0; use score='absolute'"
        )
    return residual_scores(y, mean, spread.reshape(y.shape), score).cpu()


def _check_enough(
    limits: tuple[float | None, ...], columns: list[Tensor], coverage: float, class_conditional: bool
) -> None:
    """Too few data for any finite threshold are refused; a few classes without one are said."""
    needed = least_count(coverage)
    short = [label for label, limit in enumerate(limits) if limit is None]
    if len(short) == len(limits):
        raise EvaluationError(
            f"loader: expected at least {needed} data{' of a class' if class_conditional else ''} for a coverage of "
            f"{coverage:g}, received {max(map(len, columns))}; hold out more, or ask for less"
        )
    if short:
        few = ", ".join(map(str, short[:5])) + (", ..." if len(short) > 5 else "")
        warnings.warn(
            f"{len(short)} of {len(limits)} classes have fewer than {needed} data, the least that a coverage of "
            f"{coverage:g} takes, and are in every set: {few}; hold out more, or use class_conditional=False",
            LeanBayesWarning,
            stacklevel=3,
        )


def _said(model: nn.Module, meaning: likelihoods.Likelihood) -> str:
    """The likelihood in words, as `predict` will find it; the model is told it where it did not know."""
    found = record.ensure(model)
    if found.likelihood is None:
        found.likelihood = meaning.to_dict()
    same = found.likelihood is not None and str(likelihoods.from_dict(found.likelihood)) == str(meaning)
    if not same:
        warnings.warn(
            f"the model was fitted as {likelihoods.from_dict(found.likelihood) if found.likelihood else 'nothing'}, "
            f"and the thresholds hold for {meaning}: pass the same task= to predict and evaluate",
            LeanBayesWarning,
            stacklevel=3,
        )
    return str(meaning)


def _finite(values: Tensor) -> Tensor:
    """Infinite ends (too few data) as the largest numbers, which the checks of metrics take."""
    return values.double().nan_to_num(posinf=torch.finfo(torch.float64).max, neginf=torch.finfo(torch.float64).min)


def sets_as_text(sets: Tensor, names: Iterable[str]) -> list[str]:
    """Each set as the names of its classes, in the order of the classes, with bars between them.

    >>> sets_as_text(torch.tensor([[True, False, True]]), ["cat", "dog", "owl"])
    ['cat|owl']
    """
    known = list(names)
    return ["|".join(known[label] for label in row.nonzero().flatten().tolist()) for row in sets]
