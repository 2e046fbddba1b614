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
    """Find thresholds on held-out data so that prediction sets or intervals contain the truth with this coverage.

    The thresholds are stored on the model: ``predict(...).prediction_sets`` and ``.prediction_intervals`` use them
    from then on, `evaluate` reports their coverage, `save`, `load` and `extract` keep them, and `fit` removes them.
    For n held-out data the probability that a new datum of the same distribution is covered is at least ``coverage``,
    and at most coverage + 1 / (n + 1) if no scores are equal and sets may be empty. This holds on average over
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
    task, samples, seed, mean_only: as in `predict`. The thresholds are valid for predictions with the same arguments.

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
    likelihood = resolve_task(model, task)
    score = checked_score(score, likelihood.task, class_conditional, randomized)
    options: dict[str, Any] = {"samples": samples, "seed": seed, "mean_only": mean_only, "task": likelihood}
    scores: list[Tensor] = []
    labels: list[Tensor] = []
    classes = used = 0
    with Bar(shown=progress) as bar:
        bar.expect(length(loader))
        bar.stage("conformal scores")
        for inputs, targets in labelled(loader):
            pred = predict(model, inputs, **options)
            used, classes = int(pred.counts.max()), pred.mean.shape[1] if likelihood.task == "classification" else 0
            if classes:
                truth = _labels(pred, targets)
                uniform = uniform_of(pred.probs) if randomized else None
                all_scores = class_scores(pred.probs, score, lam=lam, k_reg=k_reg, uniform=uniform)
                scores.append(all_scores.gather(1, truth[:, None].to(all_scores.device)).cpu())
                labels.append(truth.cpu())
            else:
                scores.append(_residuals(pred, targets, score, coverage))
            bar.advance(len(pred))
    checks.nonempty(sum(map(len, scores)), "loader")
    columns = list(torch.cat(scores).unbind(1))
    if class_conditional:
        truth = torch.cat(labels)
        columns = [columns[0][truth == label] for label in range(classes)]
    limits = tuple(threshold(column, coverage) for column in columns)
    _check_enough(limits, columns, coverage, class_conditional)
    result = Conformal(
        coverage,
        score,
        limits,
        tuple(map(len, columns)),
        used,
        _stored(model, likelihood),
        lam=lam,
        k_reg=k_reg,
        **flags,
    )
    record.ensure(model).conformal = result
    return result


class Coverage:
    """A stream of metrics: how often conformal sets or intervals contain the truth, and how large they are."""

    def __init__(self) -> None:
        self.nominal = 0.0
        self.names: tuple[str, ...] = ()
        self.covered: list[Tensor] = []
        self.sizes: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, pred: Predictive, targets: Tensor) -> None:
        """Add a batch; does nothing if the model has no thresholds."""
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
        """The metrics, and for a classification a table by class; both empty if there were no thresholds."""
        if not self.covered:
            return {}, {}
        covered, sizes = torch.cat(self.covered).double(), torch.cat(self.sizes)
        size = "conformal.size" if self.labels else "conformal.width"
        metrics = {"conformal.coverage": float(covered.mean()), size: float(sizes.mean())}
        if not self.labels:
            return metrics, {}
        labels, rows = torch.cat(self.labels), []
        for label in labels.unique().tolist():
            of_class = labels == label
            rows.append(
                {
                    "class": self.names[label],
                    "count": int(of_class.sum()),
                    "coverage": float(covered[of_class].mean()),
                    "size": float(sizes[of_class].mean()),
                }
            )
        metrics["conformal.worst_class"] = min(row["coverage"] for row in rows)
        return metrics, {"conformal": {"nominal": self.nominal, "classes": rows}}


def checked_score(score: Any, task: str, class_conditional: bool = False, randomized: bool = False) -> Score:
    """The name of the score, or the default of the task; refused if it does not suit the task."""
    if task not in ("classification", "regression"):
        raise EvaluationError(
            f"conformalize_: expected a task of classification or regression, received {task}; the pixels of an image "
            "are not exchangeable with each other, so that no threshold over pixels carries a guarantee"
        )
    scores = CLASS_SCORES if task == "classification" else INTERVAL_SCORES
    chosen: Score = arguments.one_of("score", scores[0] if score is None else score, scores, error=EvaluationError)
    if class_conditional and task == "regression":
        raise EvaluationError("class_conditional: expected a classification, received a regression; leave it out")
    if randomized and chosen not in ("aps", "raps"):
        raise EvaluationError(f"randomized: expected score='aps' or 'raps', received {chosen!r}; leave it out")
    return chosen


def _labels(pred: Predictive, targets: Any) -> Tensor:
    found = checks.classified(pred.probs, targets)
    if found.shares is not None:
        raise EvaluationError(
            f"conformalize_: expected one label a datum, received labels by several annotators, "
            f"{tuple(targets.shape)}; pass targets.argmax(1)"
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
    """Refuse too few data for any finite threshold; warn if only some classes have too few."""
    needed = least_count(coverage)
    short = [label for label, limit in enumerate(limits) if limit is None]
    if len(short) == len(limits):
        raise EvaluationError(
            f"loader: expected at least {needed} data{' of a class' if class_conditional else ''} for a coverage of "
            f"{coverage:g}, received {max(map(len, columns))}; hold out more data, or lower coverage="
        )
    if short:
        few = ", ".join(map(str, short[:5])) + (", ..." if len(short) > 5 else "")
        warnings.warn(
            f"{len(short)} of {len(limits)} classes have fewer than {needed} data, the least that a coverage of "
            f"{coverage:g} takes, and are in every set: {few}; hold out more, or use class_conditional=False",
            LeanBayesWarning,
            stacklevel=3,
        )


def _stored(model: nn.Module, likelihood: likelihoods.Likelihood) -> str:
    """The likelihood as text; it is stored on the model if none was, and a warning is given if another was."""
    found = record.ensure(model)
    if found.likelihood is None:
        found.likelihood = likelihood.to_dict()
    if str(likelihoods.from_dict(found.likelihood)) != str(likelihood):
        warnings.warn(
            f"the model was fitted with the likelihood {likelihoods.from_dict(found.likelihood)}, "
            f"but the thresholds are for {likelihood}: pass the same task= to predict and evaluate",
            LeanBayesWarning,
            stacklevel=3,
        )
    return str(likelihood)


def _finite(values: Tensor) -> Tensor:
    """Infinite ends (too few data) replaced by the largest finite numbers, which the checks of metrics accept."""
    return values.double().nan_to_num(posinf=torch.finfo(torch.float64).max, neginf=torch.finfo(torch.float64).min)


def sets_as_text(sets: Tensor, names: Iterable[str]) -> list[str]:
    """The class names of each set, in the order of the classes, joined by ``|``.

    >>> sets_as_text(torch.tensor([[True, False, True]]), ["cat", "dog", "owl"])
    ['cat|owl']
    """
    class_names = list(names)
    return ["|".join(class_names[label] for label in row.nonzero().flatten().tolist()) for row in sets]
