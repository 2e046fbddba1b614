"""How several models differ, in a few sentences; what is within noise is said to be so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import columns
from .column import Column
from .summary_text_one import BLIND, aurocs

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def about(evaluations: Sequence[Evaluation]) -> list[str]:
    """Which is right most often, which to believe, which notices, which holds up, and what it costs."""
    said = (
        _accuracy(evaluations),
        _calibration(evaluations),
        *_strange(evaluations),
        _held_up(evaluations, "corruption.accuracy", "holds up best on spoilt images", "right on"),
        _held_up(evaluations, "attack.success", "is hardest to attack", "turned on"),
        _cost(evaluations),
    )
    return [sentence for sentence in said if sentence]


def _accuracy(evaluations: Sequence[Evaluation]) -> str:
    for key, word in (("accuracy", "most accurate"), ("rmse", "closest")):
        column, order = _ranked(key, evaluations)
        if len(order) < 2:
            continue
        first, last = order[0], order[-1]
        value = columns.written(first[key], column.kind, first.count) + (" RMSE" if key == "rmse" else "")
        if key == "rmse" and not columns.best(column, evaluations):
            return f"All {len(order)} are equally close ({value})."
        if _close(key, first, last):
            span = sorted({column.text(last), column.text(first)})
            equal = "accurate" if key == "accuracy" else "close"
            return f"All {len(order)} are about equally {equal} ({' to '.join(span)}, within sampling noise)."
        if _close(key, first, order[1]):
            lead = f"but its lead over {order[1].name} is within sampling noise"
            return f"{first.name} is the {word} ({value}), {lead}."
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
        if _close(key, first, order[1]):
            text += f", though its lead over {order[1].name} is within sampling noise"
        other, calibrated = _ranked("ece", evaluations)
        if len(calibrated) < 2 or not columns.best(other, evaluations):
            return text + "."
        if _close("ece", calibrated[0], calibrated[1]):
            return text + "; in the calibration error the best two do not differ beyond noise."
        if calibrated[0] is first:
            return text + f" and its confidence is the most honest (ECE {other.text(first)})."
        return text + f"; the confidence of {calibrated[0].name} is the most honest (ECE {other.text(calibrated[0])})."
    return ""


def _strange(evaluations: Sequence[Evaluation]) -> list[str]:
    """Which model doubts strange data best, by whichever of its scores does best."""
    sets: dict[str, list[tuple[float, str, str]]] = {}
    for e in evaluations:
        for name, score, value in aurocs(e):
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


def _held_up(evaluations: Sequence[Evaluation], key: str, what: str, how: str) -> str:
    column, order = _ranked(key, evaluations)
    if len(order) < 2 or not columns.best(column, evaluations):
        return ""
    first, last = order[0], order[-1]
    return f"{first.name} {what} ({how} {column.text(first)}; {last.name}: {column.text(last)})."


def _ranked(key: str, evaluations: Sequence[Evaluation]) -> tuple[Column, list[Evaluation]]:
    shown = columns.quality(evaluations)
    column = next((c for c in shown if c.key == key), Column(key, key, "none", "number", ""))
    having = [e for e in evaluations if column.value(e) is not None]
    return column, sorted(having, key=lambda e: column.loss(e[key]))


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _close(key: str, a: Evaluation, b: Evaluation) -> bool:
    """Whether two models differ by no more than chance; for accuracies that is known even without a bootstrap."""
    if columns.noise_of(key, a, b) is not None:
        return columns.within_noise(key, a, b)
    return key == "accuracy" and abs(a[key] - b[key]) < _noise(a, b)


def _noise(a: Evaluation, b: Evaluation) -> float:
    """Two standard errors of the difference of two accuracies, as if they were measured on different data."""
    variance = sum(e["accuracy"] * (1 - e["accuracy"]) / max(e.count, 1) for e in (a, b))
    return 1.96 * math.sqrt(variance)
