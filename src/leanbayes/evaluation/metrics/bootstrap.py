"""The bootstrap (Efron 1979): metrics on resampled data, from a few scalars a point.

A replicate draws n data out of n with replacement. Which were drawn matters only through how often, so a replicate is a
vector of counts, and every metric is computed with weights on points that were sorted and binned once. The counts are a
function of (n, seed): two models on the same data see the same replicates, and their differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks import whole_number
from ...errors import EvaluationError
from . import checks, ood
from .calibration import check_binning, equal_ranks
from .selective import best_aurc, check_answers, ends

Array = np.ndarray
Statistic = Callable[[Array], dict[str, float]]
"""From weights (N,) to metrics by name."""

MEANS = {"correct": "accuracy", "absolute": "mae"}
"""Scalars a point whose mean has another name."""
ROOTS = {"squared": "rmse", "variance": "sharpness"}
"""Scalars a point of whose mean the root is reported."""


def resamplings(count: int, *, replicates: int = 200, seed: int = 0, stream: int = 0) -> Iterator[Array]:
    """How often each of ``count`` data is drawn, (count,) in float64, one replicate after another.

    It depends on its arguments only. It is made of raw bits, which NumPy promises never to change (NEP 19), unlike the
    results of its methods: results saved by different versions stay paired. stream: a number that gives other draws.

    >>> [int(weights.sum()) for weights in resamplings(5, replicates=2)]
    [5, 5]
    """
    bits = np.random.PCG64([seed % 2**64, stream])
    for _ in range(replicates):
        drawn = (bits.random_raw(count) % np.uint64(count)).astype(np.int64)  # the bias of % is below count / 2^64
        yield np.bincount(drawn, minlength=count).astype(np.float64)


def replicates(
    points: Mapping[str, Tensor],
    *,
    replicates: int = 200,
    seed: int = 0,
    bins: int = 20,
    min_count: int = 6,
    adaptive: bool = False,
    accuracies: tuple[float, ...] = (),
) -> dict[str, list[float]]:
    """Every metric that scalars a point give, on each of the resampled data sets.

    points: (N,) each, as the streams keep them. The mean of each is a metric (correct: accuracy; squared: rmse;
    absolute: mae; variance: sharpness; the others under their own names). confidence and correct together also give
    ece, mce, adaptive_ece, aurc, eaurc, and selective.coverage.A for each of ``accuracies``. datum, where given, is the
    number of the datum that a point belongs to: whole data are resampled, since pixels of an image are not independent.
    bins, min_count, adaptive: the binning, as in `reliability`. NaN where no bin of a replicate holds min_count data.

    >>> found = replicates({"correct": torch.tensor([1.0, 0.0, 1.0, 1.0])}, replicates=3)
    >>> list(found), len(found["accuracy"])
    (['accuracy'], 3)
    """
    whole_number("replicates", replicates, error=EvaluationError)
    check_binning(bins, min_count)
    values = dict(points)
    datum = values.pop("datum", None)
    count, datum_of_point = _data(values, datum)
    statistics = [_means(values)]
    if "confidence" in values and "correct" in values:
        sure, right = check_answers(values["confidence"], values["correct"])
        statistics.append(_answers(sure, right, bins, min_count, adaptive, accuracies))
    found: dict[str, list[float]] = {}
    for weights in resamplings(count, replicates=replicates, seed=seed):
        point_weights = weights if datum_of_point is None else weights[datum_of_point]
        for statistic in statistics:
            for name, value in statistic(point_weights).items():
                found.setdefault(name, []).append(value)
    return found


def rank_replicates(
    inside: Tensor,
    outside: Tensor,
    *,
    replicates: int = 200,
    seed: int = 0,
    positive: ood.Positive = "ood",
    groups: Tensor | None = None,
) -> dict[str, list[float]]:
    """auroc, aupr and fpr95 of one score, both sides resampled, each by itself. inside, outside: (N,) and (M,).

    groups: the number of the group that each datum inside belongs to (N,); whole groups are then resampled.

    >>> found = rank_replicates(torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9]), replicates=2)
    >>> found
    {'auroc': [1.0, 1.0], 'aupr': [1.0, 1.0], 'fpr95': [0.0, 0.0]}
    """
    whole_number("replicates", replicates, error=EvaluationError)
    truth, scores = ood.labelled(inside, outside, positive)
    statistic = _ranks(torch.from_numpy(scores), torch.from_numpy(truth))
    group_of_datum = np.arange(len(inside)) if groups is None else groups.unique(return_inverse=True)[1].numpy()
    drawn = resamplings(int(group_of_datum.max()) + 1, replicates=replicates, seed=seed)
    inside_weights = (weights[group_of_datum] for weights in drawn)
    outside_weights = resamplings(len(outside), replicates=replicates, seed=seed, stream=1)
    found: dict[str, list[float]] = {"auroc": [], "aupr": [], "fpr95": []}
    for sides in zip(inside_weights, outside_weights, strict=True):
        for name, value in statistic(np.concatenate(sides)).items():
            found[name].append(value)
    return found


def set_replicates(
    inside: Mapping[str, Tensor],
    outside: Mapping[str, Mapping[str, Tensor]],
    *,
    replicates: int = 200,
    seed: int = 0,
    groups: Tensor | None = None,
) -> dict[str, list[float]]:
    """``ood.SET.SCORE.METRIC`` of all that `ood.compare_sets` ranks; groups: of the data inside."""
    options: dict[str, Any] = {"replicates": replicates, "seed": seed, "groups": groups}
    return {
        f"ood.{name}.{score}.{metric}": values
        for name, sets in outside.items()
        for score, inside_scores in inside.items()
        if ood.varies(score, inside_scores, sets[score])
        for metric, values in rank_replicates(inside_scores, sets[score], **options).items()
    }


# Statistics: sorting and binning are done once; a replicate is a few weighted sums.


def _means(values: Mapping[str, Tensor]) -> Statistic:
    columns = {name: value.double().cpu().numpy() for name, value in values.items()}

    def compute(weights: Array) -> dict[str, float]:
        total, found = float(weights.sum()), {}
        for name, column in columns.items():
            mean = float(weights @ column) / total
            found[ROOTS.get(name) or MEANS.get(name, name)] = mean**0.5 if name in ROOTS else mean
        return found

    return compute


def _answers(
    sure: Tensor, right: Tensor, bins: int, min_count: int, adaptive: bool, accuracies: tuple[float, ...]
) -> Statistic:
    """Calibration and selective prediction, all from running sums over the data in the order of their confidence."""
    by_confidence, by = sure.sort()
    ordered, order, last = by_confidence.numpy(), by.numpy(), ends(by_confidence).numpy()
    wrong, gap = 1 - right.numpy()[order], (right - sure).numpy()[order]
    equal_width = np.searchsorted(ordered, np.arange(bins + 1) / bins, side="right")
    equal_width[0], equal_width[-1] = 0, len(ordered)

    def compute(weights: Array) -> dict[str, float]:
        weights = weights[order]
        mass, errors, off = _running(weights), _running(weights * wrong), _running(weights * gap)
        ranks = equal_ranks(round(float(mass[-1])), bins).numpy()
        upper = np.unique(ordered[np.searchsorted(mass[1:], ranks)])  # quantiles of the data that were drawn
        equal_mass = np.r_[0, np.searchsorted(ordered, upper, side="right")]
        cuts = equal_mass if adaptive else equal_width
        found = _calibration(np.diff(mass[cuts]), np.diff(off[cuts]), min_count)
        every = _calibration(np.diff(mass[equal_mass]), np.diff(off[equal_mass]), 0)
        return {**found, "adaptive_ece": every["ece"], **_selective(mass, errors, last, accuracies)}

    return compute


def _calibration(held: Array, gap: Array, min_count: int) -> dict[str, float]:
    """ECE and MCE of bins that hold so many data, whose sums of (correct - confidence) are ``gap``."""
    counts = held >= max(min_count, 1)
    if not counts.any():
        return {"ece": np.nan, "mce": np.nan}
    gap = np.abs(gap[counts])
    return {"ece": float(gap.sum() / held.sum()), "mce": float((gap / held[counts]).max())}


def _selective(mass: Array, errors: Array, last: Array, accuracies: tuple[float, ...]) -> dict[str, float]:
    """AURC, E-AURC and coverages from running sums that rise with confidence; equal confidences end at ``last``."""
    first, total = np.r_[0, last[:-1] + 1], float(mass[-1])
    answered, wrong = total - mass[first], errors[-1] - errors[first]
    risk = np.divide(wrong, answered, out=np.zeros_like(wrong), where=answered > 0)
    aurc = float((mass[last + 1] - mass[first]) @ risk) / total
    found = {"aurc": aurc, "eaurc": aurc - best_aurc(total, float(errors[-1]))}
    for accuracy in accuracies:
        enough = np.flatnonzero(risk <= 1 - accuracy + 1e-12)
        found[f"selective.coverage.{accuracy:g}"] = float(answered[enough[0]]) / total if len(enough) else 0.0
    return found


def _ranks(scores: Tensor, truth: Tensor, recall: float = 0.95) -> Statistic:
    ordered, by = scores.sort(descending=True)
    last, order = ends(ordered).numpy(), by.numpy()
    positive = truth.numpy()[order].astype(np.float64)

    def compute(weights: Array) -> dict[str, float]:
        weights = weights[order]
        flagged, hits = np.cumsum(weights)[last], np.cumsum(weights * positive)[last]
        alarms = flagged - hits
        new, found, lost = np.diff(hits, prepend=0), hits[-1], alarms[-1]
        precision = np.divide(hits, flagged, out=np.zeros_like(hits), where=flagged > 0)
        return {
            "auroc": float(np.diff(alarms, prepend=0) @ (hits - new / 2)) / float(found * lost),
            "aupr": float(new @ precision) / float(found),
            "fpr95": float(alarms[np.argmax(hits / found >= recall)] / lost),
        }

    return compute


def _running(values: Array) -> Array:
    """0, and the sums of the first, the first two, ..."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _data(values: Mapping[str, Tensor], datum: Tensor | None) -> tuple[int, Array | None]:
    """How many data there are to resample, and which of them each point belongs to."""
    if not values:
        raise EvaluationError("points: expected at least one scalar a point by name, received none")
    first = next(iter(values))
    shape = tuple(values[first].shape[:1])
    for name, value in values.items():
        checks.finite(value, f"points[{name!r}]")
        if tuple(value.shape) != shape:
            raise EvaluationError(f"points[{name!r}]: expected shape {shape}, received {tuple(value.shape)}")
    checks.nonempty(len(values[first]), "points")
    if datum is None:
        return len(values[first]), None
    if datum.shape != values[first].shape or datum.is_floating_point() or int(datum.min()) < 0:
        raise EvaluationError(
            f"points['datum']: expected the number of its datum for each of {len(values[first])} points, "
            f"received {datum.dtype} of shape {tuple(datum.shape)}"
        )
    numbers, datum_of_point = datum.cpu().unique(return_inverse=True)
    return len(numbers), datum_of_point.numpy()
