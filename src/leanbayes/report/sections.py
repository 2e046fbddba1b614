"""The numbers of one model as small tables of text, for the terminal and the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import columns
from .column import Column, Kind, written
from .metrics import ATTACKED, CALIBRATION, CONFORMAL, CORRUPTED, DECLINE, EXPERTS, HUMAN, RANKS, SCALED, SCORES

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


@dataclasses.dataclass(frozen=True)
class Section:
    """A table: title, names of the columns (the first is that of the rows), rows, and the meaning of each row."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    meanings: tuple[str, ...] = ()


def sections(e: Evaluation) -> Iterator[Section]:
    """The tables that an evaluation fills.

    >>> from leanbayes.evaluation import Evaluation
    >>> metrics = {"accuracy": 0.9, "selective.coverage.0.99": 0.8}
    >>> [(found.title, found.rows) for found in sections(Evaluation("mlp", "classification", 100, metrics))]
    [('Quality', [('Accuracy', '90.0 %')]), ('Answering only when sure', [('99 %', '80.0 %', '–')])]
    """
    shown = columns.quality([e])
    alone = [c for c in shown if not c.group and not c.key.startswith(("coverage.", "width.", "ood."))]
    yield from _plain(e, "Quality", alone)
    yield from _intervals(e, shown)
    yield from _plain(e, EXPERTS, [c for c in shown if c.group == EXPERTS])
    yield from _plain(e, CALIBRATION, [c for c in shown if c.group == CALIBRATION])
    yield from _scaled(e)
    yield from _plain(e, CONFORMAL, [c for c in shown if c.group == CONFORMAL])
    yield from _classes(e)
    yield from _plain(e, HUMAN, [c for c in shown if c.group == HUMAN])
    yield from _selective(e, shown)
    yield from _ranks(e, shown)
    yield from _plain(e, CORRUPTED, [c for c in shown if c.group == CORRUPTED])
    yield from _severities(e)
    yield from _plain(e, ATTACKED, [c for c in shown if c.group == ATTACKED])
    yield from _stages(e)
    if cost := columns.cost([e]):
        yield Section("Cost", ("", ""), [(c.label, c.text(e)) for c in cost], tuple(c.meaning for c in cost))


def _stages(e: Evaluation) -> Iterator[Section]:
    """Of a cascade: the share of the data that each stage answered, and the cost of each."""
    rows: list[tuple[str, ...]] = [
        (str(row["stage"]), written(row["share"], "percent", e.count), written(row["macs"], "amount"))
        for row in e.curves.get("stages", [])
    ]
    if rows:
        yield Section("Answered by stage", ("Stage", "Data", "MACs each"), rows)


def _plain(e: Evaluation, title: str, shown: list[Column]) -> Iterator[Section]:
    if not shown:
        return
    meanings = tuple(c.meaning for c in shown)
    if any(c.interval(e) for c in shown):
        rows: list[tuple[str, ...]] = [(c.label, c.text(e), c.interval(e)) for c in shown]
        yield Section(title, ("", "", "95 % interval"), rows, meanings)
    else:
        yield Section(title, ("", ""), [(c.label, c.text(e)) for c in shown], meanings)


def _intervals(e: Evaluation, shown: list[Column]) -> Iterator[Section]:
    by_key = {c.key: c for c in shown}
    levels = [key.removeprefix("coverage.") for key in by_key if key.startswith("coverage.")]
    rows: list[tuple[str, ...]] = []
    for level in levels:
        pair = (by_key.get(f"{what}.{level}") for what in ("coverage", "width"))
        rows.append((f"{100 * float(level):g} %", *("–" if c is None else c.text(e) for c in pair)))
    if rows:
        yield Section("Intervals", ("Level", "Truths inside", "Mean width"), rows)


def _scaled(e: Evaluation) -> Iterator[Section]:
    if "temperature" not in e.metrics:
        return
    rows: list[tuple[str, ...]] = []
    for key in ("nll", "ece", "brier"):
        before, after = (next((c for c in columns.quality([e]) if c.key == k), None) for k in (key, f"scaled.{key}"))
        if before is not None and after is not None:
            rows.append((before.label, before.text(e), after.text(e)))
    yield Section(SCALED, ("", "As it is", f"T = {e.metrics['temperature']:.3g}"), rows)


def _classes(e: Evaluation) -> Iterator[Section]:
    """Coverage and size of conformal sets by class, for the twenty classes with the lowest coverage."""
    found = sorted(e.curves.get("conformal", {}).get("classes", []), key=lambda row: row["coverage"])
    rows: list[tuple[str, ...]] = [
        (row["class"], f"{row['count']:,}", f"{100 * row['coverage']:.1f} %", f"{row['size']:.2f}")
        for row in found[:20]
    ]
    if rows:
        yield Section(f"{CONFORMAL} by class", ("Class", "Data", "Coverage", "Set size"), rows)


def _selective(e: Evaluation, shown: list[Column]) -> Iterator[Section]:
    rows: list[tuple[str, ...]] = []
    for c in (c for c in shown if c.key.startswith("selective.coverage.")):
        accuracy = c.key.removeprefix("selective.coverage.")
        limit = next((t for t in shown if t.key == f"selective.threshold.{accuracy}"), None)
        rows.append((f"{100 * float(accuracy):g} %", c.text(e), "–" if limit is None else limit.text(e)))
    if rows:
        yield Section(DECLINE, ("Wished accuracy", "Can answer", "When sure to"), rows)


def _severities(e: Evaluation) -> Iterator[Section]:
    prefix = "corruption.accuracy."
    kinds: dict[str, Kind] = {"accuracy": "percent", "nll": "number", "ece": "number"}
    rows: list[tuple[str, ...]] = []
    for level in (key.removeprefix(prefix) for key in e.metrics if key.startswith(prefix)):
        shown = (Column(f"corruption.{key}.{level}", key, "none", kind, "") for key, kind in kinds.items())
        rows.append((level, *(c.text(e) for c in shown)))
    if rows:
        yield Section("Corrupted images by severity", ("Severity", "Accuracy ↑", "NLL ↓", "ECE ↓"), rows)


def _ranks(e: Evaluation, shown: list[Column]) -> Iterator[Section]:
    by_key = {c.key: c for c in shown if c.key.startswith("ood.")}
    pairs = dict.fromkeys(columns.split_rank(key)[:2] for key in by_key)
    rows: list[tuple[str, ...]] = []
    for name, score in pairs:
        cells = (by_key.get(f"ood.{name}.{score}.{metric}") for metric in RANKS)
        rows.append((f"{name}, {SCORES.get(score, score)}", *("–" if c is None else c.text(e) for c in cells)))
    if rows:
        yield Section("Out-of-domain data", ("Set, score", "AUROC ↑", "AUPR ↑", "FPR95 ↓"), rows)
