"""A summary of evaluations in at most five sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from . import columns
from .column import Column, written

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation

MOST = 5
UNNOTICED = 0.6
"""An AUROC below this counts as not noticing; 0.5 is chance."""
SURE_FACTOR = 3.0
"""A smaller factor between measured times may be noise: 2.6 was measured between two identical networks."""


def summary(evaluations: Sequence[Evaluation]) -> list[str]:
    """A few plain sentences about one model, or about how several differ.

    >>> from leanbayes.evaluation import Evaluation
    >>> e = Evaluation("mlp", "classification", 1000, {"accuracy": 0.9, "confidence": 0.98, "ece": 0.08})
    >>> print(*summary([e]), sep="\\n")
    mlp classifies 90.0 % of 1,000 test data correctly.
    It is over-confident: its mean confidence is 98.0 % (ECE 0.0800).
    """
    one: tuple[Callable[[Evaluation], str], ...] = (_quality, _experts, _confidence, _selective, _strange, _robust)
    several: tuple[Callable[[Sequence[Evaluation]], str], ...] = (_best, _likelihood, _notices, _most_robust, _cost)
    found = (f(evaluations[0]) for f in one) if len(evaluations) == 1 else (f(evaluations) for f in several)
    return [sentence for sentence in found if sentence][:MOST]


def _sentence(parts: Sequence[str]) -> str:
    """Parts as one sentence; empty without any."""
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else ""


# one model


def _quality(e: Evaluation) -> str:
    if "accuracy" in e.metrics:
        what = "of the pixels of" if e.task == "segmentation" else "of"
        data = "images" if e.task == "segmentation" else "test data"
        return f"{e.name} classifies {_percent(e['accuracy'], e.count)} {what} {e.count:,} {data} correctly."
    if "rmse" in e.metrics:
        return f"{e.name} has an RMSE of {written(e['rmse'], 'number')} on {e.count:,} test data."
    return ""


def _experts(e: Evaluation) -> str:
    """The distance between samples of segmentations and the experts' masks, and whether they differ as much."""
    if "ged.unbiased" not in e.metrics:
        return ""
    column = next(c for c in columns.quality([e]) if c.key == "ged.unbiased")
    within = f" ({found})" if (found := column.interval(e)) else ""
    text = f"Its samples are at an energy distance of {column.text(e)}{within} from the experts"
    own, theirs = e.metrics.get("diversity", math.nan), e["diversity.experts"]
    if theirs > 0 and math.isfinite(own):
        how = "less than" if own < 0.8 * theirs else "more than" if own > 1.25 * theirs else "about as much as"
        text += f"; they differ {how} the experts do ({own:.2f} and {theirs:.2f})"
    return text + "."


def _confidence(e: Evaluation) -> str:
    if "coverage.0.9" in e.metrics:
        found = e["coverage.0.9"]
        if abs(found - 0.9) < max(0.02, 1.96 * math.sqrt(0.09 / max(e.count, 1))):
            verdict = "as they should"
        else:
            verdict = "so they are too narrow" if found < 0.9 else "so they are too wide"
        return f"Its 90 % intervals contain {_percent(found, e.count)} of the targets, {verdict}."
    error = e.metrics.get("ece", math.nan)
    if math.isnan(error) or "confidence" not in e.metrics:
        return ""
    gap = e["confidence"] - e["accuracy"]
    if error < 0.02:
        text = f"Its confidence can be trusted (ECE {error:.4f})"
    elif abs(gap) < error / 2:
        text = f"Its confidence is right on average, but not at every level (ECE {error:.4f})"
    else:
        word = "over-confident" if gap > 0 else "under-confident"
        text = f"It is {word}: its mean confidence is {_percent(e['confidence'], e.count)} (ECE {error:.4f})"
    if error - e.metrics.get("scaled.ece", math.nan) > 0.005:
        text += f"; a temperature of {e['temperature']:.2f} would bring the ECE to {e['scaled.ece']:.4f}"
    return text + "."


def _selective(e: Evaluation) -> str:
    """The highest of the required accuracies that it reaches, or the lowest if it reaches none."""
    prefix = "selective.coverage."
    wished = sorted((float(k.removeprefix(prefix)), k) for k in e.metrics if k.startswith(prefix))
    better = [(accuracy, e[key]) for accuracy, key in wished if accuracy > e.metrics.get("accuracy", 1.0)]
    if not better:
        return ""
    reached = [(accuracy, share) for accuracy, share in better if share > 0]
    if not reached:
        return f"No confidence threshold makes it right {100 * better[0][0]:g} % of the time."
    accuracy, share = reached[-1]
    sure = e.metrics.get(f"selective.threshold.{accuracy:g}", math.nan)
    when = f" (confidence of at least {_percent(sure, 100)})" if math.isfinite(sure) else ""
    return f"To be right {100 * accuracy:g} % of the time, it can answer {_percent(share, e.count)} of the data{when}."


def _strange(e: Evaluation) -> str:
    found = [(name, e[key]) for name, key in _rank_keys([e]).items()]
    noticed = [f"{name} (AUROC {value:.3f})" for name, value in found if value >= UNNOTICED]
    missed = [f"{name} (AUROC {value:.3f})" for name, value in found if value < UNNOTICED]
    by = "variance" if e.task == "regression" else "entropy"
    text = f"By its {by} it tells {_listed(noticed)} from the test data" if noticed else ""
    if missed:
        text = f"{text}, but does not notice {_listed(missed)}" if text else f"It does not notice {_listed(missed)}"
    return text + "." if text else ""


def _robust(e: Evaluation) -> str:
    parts = []
    cells = e.curves.get("corruption") or []
    if cells and "corruption.accuracy" in e.metrics:
        worst = min(cells, key=lambda cell: cell["accuracy"])
        kind = str(worst["corruption"]).replace("_", " ")
        parts.append(
            f"on corrupted images its accuracy is {_percent(e['corruption.accuracy'], 100)} on average and "
            f"{_percent(worst['accuracy'], 100)} at worst ({kind}, severity {worst['severity']})"
        )
    if "attack.success" in e.metrics:
        curve = e.curves.get("attack", {})
        steps = f" of {curve['iterations']} steps" if "iterations" in curve else ""
        parts.append(f"an attack{steps} succeeds on {_percent(e['attack.success'], 100)} of the images")
    return _sentence(parts)


# several models


def _best(evaluations: Sequence[Evaluation]) -> str:
    kinds = (
        ("ged.unbiased", "closest to the experts", "close to the experts"),
        ("accuracy", "most accurate", "accurate"),
    )
    for key, most, equally in (*kinds, ("rmse", "closest", "close")):
        column, order = _ranked(key, evaluations)
        if len(order) < 2:
            continue
        first, last = order[0], order[-1]
        unit = {"rmse": " RMSE", "ged.unbiased": " GED"}.get(key, "")
        if _close(column, first, last):
            span = " to ".join(dict.fromkeys((column.text(last), column.text(first))))
            return f"All {len(order)} are about equally {equally} ({span}{unit}, within sampling noise)."
        close = _close_behind(column, order)
        rest = f"; {close} within sampling noise of it" if close else ""
        return f"{first.name} is the {most} ({column.text(first)}{unit}){rest}."
    return ""


def _likelihood(evaluations: Sequence[Evaluation]) -> str:
    for key in ("nll", "log_density"):
        column, order = _ranked(key, evaluations)
        if len(order) < 2 or not columns.best(column, evaluations):
            continue
        text = f"The best {_name(column)} is {_with_close(column, order)}, the worst {_of(column, order[-1])}"
        other, calibrated = _ranked("ece", evaluations)
        if len(calibrated) > 1 and columns.best(other, evaluations):
            text += f"; the best ECE is {_with_close(other, calibrated)}"
        return text + "."
    return ""


def _notices(evaluations: Sequence[Evaluation]) -> str:
    """Out-of-domain sets by the score that the table shows."""
    parts, missed, equal = [], [], []
    for name, key in _rank_keys(evaluations).items():
        column, order = _ranked(key, evaluations)
        value = column.text(order[0])
        if order[0][key] < UNNOTICED:
            missed.append(f"{name} (AUROC {value} at best)")
        elif len(order) < 2 or not columns.best(column, evaluations) or _close(column, order[0], order[-1]):
            equal.append(f"{name} (AUROC {value})")
        else:
            parts.append(f"the best AUROC for {name} is {_with_close(column, order)}")
    if equal:
        parts.append(f"all notice {_listed(equal)} about equally well")
    if missed:
        parts.append(f"none notices {_listed(missed)}")
    return _sentence(parts)


def _most_robust(evaluations: Sequence[Evaluation]) -> str:
    parts = []
    for key, what in (
        ("corruption.accuracy", "accuracy on corrupted images"),
        ("attack.success", "success rate of attacks"),
    ):
        column, order = _ranked(key, evaluations)
        if len(order) > 1 and columns.best(column, evaluations):
            best, worst = _of(column, order[0]), _of(column, order[-1])
            parts.append(f"{what}: from {worst} to {best}")
    return _sentence(parts)


def _cost(evaluations: Sequence[Evaluation]) -> str:
    """Parameters and prediction times; times only if noise cannot explain their factor."""
    parts = []
    times = {e.name: e.cost["predict_seconds"] for e in evaluations if e.cost.get("predict_seconds")}
    if len(times) > 1:
        cheap, dear = min(times, key=lambda name: times[name]), max(times, key=lambda name: times[name])
        if (factor := times[dear] / times[cheap]) >= SURE_FACTOR:
            parts.append(f"predictions of {dear} take about {_rough(factor)} times as long as those of {cheap}")
        else:
            parts.append("their predictions take about equally long, as far as one measurement can tell")
    counts = {e.name: e.cost["parameters"] for e in evaluations if e.cost.get("parameters")}
    if len(counts) > 1 and max(counts.values()) >= 1.05 * min(counts.values()):
        small, large = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        low, high = (written(counts[name], "amount") for name in (small, large))
        parts.append(f"the models have from {low} ({small}) to {high} parameters ({large})")
    return _sentence(parts)


def _of(column: Column, e: Evaluation) -> str:
    return f"{column.text(e)} ({e.name})"


def _with_close(column: Column, order: Sequence[Evaluation]) -> str:
    close = _close_behind(column, order)
    return f"{column.text(order[0])} ({order[0].name}{f'; {close} within noise' if close else ''})"


def _close_behind(column: Column, order: Sequence[Evaluation]) -> str:
    """The models within noise of the first: "b is", "b and c are", "5 others are"; empty if there are none."""
    close = [e.name for e in order[1:] if _close(column, order[0], e)]
    if not close:
        return ""
    who = _listed(close) if len(close) <= 2 else f"{len(close)} others"
    return f"{who} {'is' if len(close) == 1 else 'are'}"


def _rank_keys(evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """The AUROC of each out-of-domain set, by the score that the table shows."""
    shown = (c.key for c in columns.quality(evaluations, full=False) if c.key.startswith("ood."))
    return {columns.split_rank(key)[0]: key for key in shown}


def _ranked(key: str, evaluations: Sequence[Evaluation]) -> tuple[Column, list[Evaluation]]:
    shown = columns.quality(evaluations)
    column = next((c for c in shown if c.key == key), Column(key, key, "none", "number", ""))
    having = [e for e in evaluations if column.value(e) is not None]
    return column, sorted(having, key=lambda e: column.loss(e[key]))


def _close(column: Column, a: Evaluation, b: Evaluation) -> bool:
    """Whether two models differ by no more than noise, which for accuracies is known without a bootstrap."""
    if column.text(a) == column.text(b):
        return True
    if columns.noise_of(column.key, a, b) is not None:
        return columns.within_noise(column.key, a, b)
    if column.key != "accuracy":
        return False
    variance = sum(e["accuracy"] * (1 - e["accuracy"]) / max(e.count, 1) for e in (a, b))
    return abs(a["accuracy"] - b["accuracy"]) < 1.96 * math.sqrt(variance)


def _rough(factor: float) -> str:
    """One significant digit: 3, 40, 200."""
    return f"{float(f'{factor:.1g}'):,.0f}"


def _name(column: Column) -> str:
    return column.label if column.label.isupper() else column.label.lower()


def _percent(value: float, count: int) -> str:
    return written(value, "percent", count)


def _listed(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
