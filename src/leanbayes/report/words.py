"""What the numbers say, in sentences a colleague would say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import columns

if TYPE_CHECKING:
    from ..evaluate.result import Evaluation

BLIND = 0.6
"""The AUROC below which it would be unkind to speak of noticing: a coin toss gives 0.5."""


def summary(evaluations: Sequence[Evaluation]) -> list[str]:
    """A few plain sentences about one model, or about how several differ.

    >>> from leanbayes.evaluate import Evaluation
    >>> e = Evaluation("mlp", "classification", 1000, {"accuracy": 0.9, "confidence": 0.98, "ece": 0.08})
    >>> print(*summary([e]), sep="\\n")
    mlp is right on 90.0 % of 1,000 test data.
    It is over-confident: it claims 98.0 % on average (calibration error 8.0 points).
    """
    if len(evaluations) == 1:
        return _one(evaluations[0])
    return [
        s for s in (_accuracy(evaluations), _calibration(evaluations), *_strange(evaluations), _cost(evaluations)) if s
    ]


def _one(e: Evaluation) -> list[str]:
    sentences = []
    if "accuracy" in e.metrics:
        what = "pixels" if e.task == "segmentation" else "test data"
        where = f"{e.count:,} images" if e.task == "segmentation" else f"{e.count:,} test data"
        share = _percent(e["accuracy"], e.count)
        sentences.append(
            f"{e.name} is right on {share} of {'the ' + what + ' of ' if what == 'pixels' else ''}{where}."
        )
    if "ece" in e.metrics and not math.isnan(e["ece"]):
        sentences.append(_believe(e))
    if "rmse" in e.metrics:
        sentences.append(f"{e.name} is off by {columns.written(e['rmse'], 'number')} (RMSE) on {e.count:,} test data.")
    if "coverage.0.9" in e.metrics:
        found = e["coverage.0.9"]
        verdict = "as it should" if abs(found - 0.9) < max(0.02, 1.96 * math.sqrt(0.09 / e.count)) else _shifted(found)
        sentences.append(f"Its 90 % intervals hold {_percent(found, e.count)} of the truths: {verdict}.")
    for name, score, value in _aurocs(e):
        sentences.append(
            f"Data of another kind ({name}) raise more doubt than test data "
            f"in {100 * value:.0f} of 100 pairs, by {score}{': it does not notice them' if value < BLIND else ''}."
        )
    return sentences


def _believe(e: Evaluation) -> str:
    gap, error = e["confidence"] - e["accuracy"], 100 * e["ece"]
    points = f"(calibration error {error:.1f} points)"
    if error < 2:
        return f"Its confidence can be taken at its word {points}."
    if abs(gap) < e["ece"] / 2:
        return f"Its confidence is right on average but not in detail {points}."
    word = "over-confident" if gap > 0 else "under-confident"
    return f"It is {word}: it claims {_percent(e['confidence'], e.count)} on average {points}."


def _shifted(found: float) -> str:
    return "too few, the intervals are too narrow" if found < 0.9 else "more than promised, the intervals are too wide"


def _accuracy(evaluations: Sequence[Evaluation]) -> str:
    for key, word in (("accuracy", "most accurate"), ("rmse", "closest")):
        column, order = _ranked(key, evaluations)
        if len(order) < 2:
            continue
        first, last = order[0], order[-1]
        value = columns.written(first[key], column.kind, first.count) + (" RMSE" if key == "rmse" else "")
        if key == "rmse" and not columns.best(column, evaluations):
            return f"All {len(order)} are equally close ({value})."
        if key == "accuracy" and first[key] - last[key] < _noise(first, last):
            span = sorted({column.text(last), column.text(first)})
            return f"All {len(order)} are about equally accurate ({' to '.join(span)}, within sampling noise)."
        if key == "accuracy" and first[key] - order[1][key] < _noise(first, order[1]):
            lead = f"but its lead over {order[1].name} is within sampling noise"
            return f"{first.name} is the most accurate ({value}), {lead}."
        return f"{first.name} is the {word} ({value}); {order[1].name} follows with {column.text(order[1])}."
    return ""


def _calibration(evaluations: Sequence[Evaluation]) -> str:
    for key, name in (("nll", "NLL"), ("log_density", "log density")):
        column, order = _ranked(key, evaluations)
        if len(order) < 2 or not columns.best(column, evaluations):
            continue
        first = order[0]
        text = f"{first.name} gives the truth the most credit ({name} {column.text(first)}"
        text += f" against {column.text(order[-1])} of {order[-1].name})"
        other, calibrated = _ranked("ece", evaluations)
        if len(calibrated) < 2 or not columns.best(other, evaluations):
            return text + "."
        if calibrated[0] is first:
            return text + f" and its confidence is the most honest (ECE {other.text(first)})."
        return text + f"; the confidence of {calibrated[0].name} is the most honest (ECE {other.text(calibrated[0])})."
    return ""


def _strange(evaluations: Sequence[Evaluation]) -> list[str]:
    """Which model doubts strange data best, by whichever of its scores does best."""
    sets: dict[str, list[tuple[float, str, str]]] = {}
    for e in evaluations:
        for name, score, value in _aurocs(e):
            sets.setdefault(name, []).append((value, e.name, score))
    winners: dict[str, list[str]] = {}
    blind: list[str] = []
    for name, found in sets.items():
        value, model, score = max(found)
        if value < BLIND:
            blind.append(f"{name} (AUROC {value:.3f} at best)")
        elif len(found) > 1 and value - min(found)[0] >= 0.0005:
            winners.setdefault(model, []).append(f"{name} (AUROC {value:.3f}, by {score})")
    sentences = [f"{model} is best at doubting {_listed(found)}." for model, found in winners.items()]
    return sentences + ([f"None of them notices {_listed(blind)}."] if blind else [])


def _cost(evaluations: Sequence[Evaluation]) -> str:
    plain = min(evaluations, key=lambda e: e.cost.get("predict_seconds", math.inf))
    others = [e for e in evaluations if e is not plain]
    parts = []
    for e in others:
        ratios = []
        for key, text in (("parameters", "the parameters"), ("predict_seconds", "the prediction time")):
            if plain.cost.get(key) and e.cost.get(key) and (ratio := e.cost[key] / plain.cost[key]) >= 1.05:
                ratios.append(f"{ratio:.1f}× {text}" if ratio < 10 else f"{ratio:.0f}× {text}")
        if ratios:
            parts.append(f"{e.name} takes {' and '.join(ratios)}")
    return f"Compared with {plain.name}, {'; '.join(parts)}." if parts else ""


def _aurocs(e: Evaluation) -> list[tuple[str, str, float]]:
    """The best score of each out-of-domain set."""
    found: dict[str, tuple[str, str, float]] = {}
    for key, value in e.metrics.items():
        if key.startswith("ood.") and key.endswith(".auroc"):
            name, score, _ = columns.split_rank(key)
            if name not in found or value > found[name][2]:
                found[name] = (name, columns.SCORES.get(score, score), value)
    return list(found.values())


def _ranked(key: str, evaluations: Sequence[Evaluation]) -> tuple[columns.Column, list[Evaluation]]:
    column = next(
        (c for c in columns.quality(evaluations) if c.key == key), columns.Column(key, key, "none", "number", "")
    )
    having = [e for e in evaluations if column.value(e) is not None]
    return column, sorted(having, key=lambda e: column.loss(e[key]))


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _noise(a: Evaluation, b: Evaluation) -> float:
    """Two standard errors of the difference of two accuracies, as if they were measured on different data."""
    variance = sum(e["accuracy"] * (1 - e["accuracy"]) / max(e.count, 1) for e in (a, b))
    return 1.96 * math.sqrt(variance)


def _percent(value: float, count: int) -> str:
    return columns.written(value, "percent", count)
