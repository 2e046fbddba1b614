"""The columns of a table, its best rows, and the rows whose difference to the best is within noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from .column import Column, written as written
from .metrics import COSTS, DECLINE, MAIN, METRICS, RANKS, SCORES

if TYPE_CHECKING:
    from ..evaluation.metrics.intervals import Difference
    from ..evaluation.result import Evaluation

Mark = Literal["best", "noise"]


def quality(evaluations: Sequence[Evaluation], *, full: bool = True) -> list[Column]:
    """The columns of quality that any evaluation fills; without ``full`` the few that fit a terminal."""
    present = list(dict.fromkeys(key for e in evaluations for key in e.metrics))
    columns = [c for c in METRICS if c.key in present]
    columns += [_interval(key) for key in present if key.startswith(("coverage.", "width."))]
    columns += [_selective(key) for key in present if key.startswith("selective.")]
    columns += [_rank(key) for key in present if key.startswith("ood.")]
    known = {c.key for c in columns}
    # The means of each severity have a table of their own (`sections`).
    others = (k for k in present if k not in known and not (k.startswith("corruption.") and k[-1].isdigit()))
    columns += [Column(k, k, "none", "number", "") for k in others]
    if full:
        return columns
    wanted = {*MAIN, *(k for k in present if k.endswith((".entropy.auroc", ".variance.auroc")))}
    return [c for c in columns if c.key in wanted]


def cost(evaluations: Sequence[Evaluation]) -> list[Column]:
    """The columns of cost that any evaluation fills.

    Active parameters are left out if they equal all parameters, and the time of a batch if batches differ in size.
    """
    present = {key for e in evaluations for key in e.cost}
    if all(e.cost.get("active_parameters") == e.cost.get("parameters") for e in evaluations):
        present.discard("active_parameters")
    sizes = {e.settings.get("latency", {}).get("batch") for e in evaluations if "latency_batch" in e.cost}
    if len(sizes) > 1:
        present.discard("latency_batch")
    shown = [c for c in COSTS if c.key in present]
    if len(sizes) == 1 and (size := sizes.pop()):
        shown = [dataclasses.replace(c, label=f"{size} data") if c.key == "latency_batch" else c for c in shown]
    return shown


def is_sampled(evaluation: Evaluation) -> bool:
    """Whether the predictions are averages over samples, not at the means or of a deterministic network."""
    return "samples" in evaluation.settings and evaluation.settings.get("engine") not in ("mean", "deterministic")


def split_rank(key: str) -> tuple[str, str, str]:
    """Set, score and metric of an out-of-domain name; a set may have dots in its name.

    >>> split_rank("ood.not.mnist.entropy.auroc")
    ('not.mnist', 'entropy', 'auroc')
    """
    name, score, metric = key.removeprefix("ood.").rsplit(".", 2)
    return name, score, metric


def best(column: Column, evaluations: Sequence[Evaluation]) -> set[int]:
    """The rows with the best value, including those that are written alike; empty if all are alike or one row exists.

    >>> from leanbayes.evaluation import Evaluation
    >>> rows = [Evaluation(n, "classification", 100, {"accuracy": a}) for n, a in [("a", 0.91), ("b", 0.93)]]
    >>> best(quality(rows)[0], rows)
    {1}
    """
    values = {row: value for row, e in enumerate(evaluations) if (value := column.value(e)) is not None}
    if column.better == "none" or len(values) < 2:
        return set()
    winner = min(values, key=lambda row: column.loss(values[row]))
    text = column.text(evaluations[winner])
    alike = {row for row in values if column.text(evaluations[row]) == text}
    return set() if len(alike) == len(values) else alike


def marks(column: Column, evaluations: Sequence[Evaluation]) -> dict[int, Mark]:
    """The best rows of a column, and those within noise of it (95 % bootstrap, paired if possible).

    >>> from leanbayes.evaluation import Evaluation
    >>> rows = [Evaluation(n, "classification", 100, {"accuracy": a}) for n, a in [("a", 0.91), ("b", 0.93)]]
    >>> marks(quality(rows)[0], rows)  # without replicates the noise is unknown
    {1: 'best'}
    """
    winners = best(column, evaluations)
    found: dict[int, Mark] = dict.fromkeys(winners, "best")
    if not winners or column.better == "nominal":
        return found
    for row, e in enumerate(evaluations):
        if row not in winners and within_noise(column.key, evaluations[min(winners)], e):
            found[row] = "noise"
    return found


def noise_of(metric: str, a: Evaluation, b: Evaluation) -> Difference | None:
    """The difference of two models with its 95 % bootstrap interval; None without replicates."""
    known = all(metric in e.replicates and metric in e.metrics for e in (a, b))
    return a.difference(metric, b) if known else None


def within_noise(metric: str, a: Evaluation, b: Evaluation) -> bool:
    """Whether the difference of two models is within noise; False without replicates."""
    found = noise_of(metric, a, b)
    return found is not None and found.within_noise


def noise_known(evaluations: Sequence[Evaluation]) -> bool:
    """Whether any evaluation has bootstrap replicates."""
    return any(e.replicates for e in evaluations)


def resampled(evaluations: Sequence[Evaluation]) -> str:
    """The unit that the bootstrap resamples, "image" or "group (175)"; empty for single data, or if models differ."""
    kinds = set()
    for e in (e for e in evaluations if e.replicates):
        groups = e.settings.get("groups")
        kinds.add(f"group ({groups['count']:,})" if groups else "image" if "annotators" in e.settings else "")
    return kinds.pop() if len(kinds) == 1 else ""


def _interval(key: str) -> Column:
    what, level = key.split(".", 1)
    percent = f"{100 * float(level):g} %"
    if what == "coverage":
        meaning = f"the share of truths inside the {percent} intervals; ideally {percent}"
        return Column(key, f"Inside {percent}", "nominal", "percent", meaning, float(level))
    meaning = f"mean width of the {percent} intervals; narrower is sharper"
    return Column(key, f"{percent} width", "none", "number", meaning)


def _rank(key: str) -> Column:
    name, score, metric = split_rank(key)
    label, better, meaning = RANKS.get(metric, (metric, "none", ""))
    by = f" ({SCORES.get(score, score)})" if score not in ("entropy", "variance") else ""
    return Column(key, f"{label} {name}{by}", better, "rank", meaning)  # type: ignore[arg-type]


def _selective(key: str) -> Column:
    _, what, accuracy = key.split(".", 2)
    percent = f"{100 * float(accuracy):g} %"
    if what == "coverage":
        meaning = f"the share of data it can answer and be right on {percent} of them"
        return Column(key, f"Answers at {percent}", "higher", "percent", meaning, group=DECLINE)
    meaning = f"how sure it must be to be right {percent} of the time"
    return Column(key, f"Threshold for {percent}", "none", "percent", meaning, group=DECLINE)
