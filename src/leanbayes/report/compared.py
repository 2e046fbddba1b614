"""The top of a page: quality beside cost, a row a model, and the figures in which several models are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import columns, detail, parts, plots, stress
from .column import Column
from .parts import text

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def quality_and_cost(evaluations: Sequence[Evaluation]) -> str:
    """The main numbers of quality, and beside them the cost: tiles for one model, a column a model for several."""
    groups = {"Quality": columns.quality(evaluations, full=False), "Cost": columns.cost(evaluations)}
    groups = {name: shown for name, shown in groups.items() if shown}
    if len(evaluations) == 1:
        return "".join(_tiles(name, shown, evaluations[0]) for name, shown in groups.items())
    marks = {c.key: columns.marks(c, evaluations) for c in groups.get("Quality", ())}
    heads = "".join(f"<th scope=col>{text(e.name)}</th>" for e in evaluations)
    cards = []
    for name, shown in groups.items():
        body = []
        for c in shown:
            cells = (_cell(c, e, marks.get(c.key, {}).get(row)) for row, e in enumerate(evaluations))
            body.append(f"<tr>{_head(c)}{''.join(cells)}</tr>")
        head = f"<thead><tr><th scope=col>{name}</th>{heads}</tr></thead>"
        table = f"<table class=wide>{head}<tbody>{''.join(body)}</tbody></table>"
        cards.append(f"<div class=card><div class=scroll>{table}</div></div>")
    legend = _legend([mark for found in marks.values() for mark in found.values()], evaluations)
    return f"<div class=beside>{''.join(cards)}</div>{legend}"


def _tiles(name: str, shown: Sequence[Column], e: Evaluation) -> str:
    tiles = "".join(
        f'<div title="{text(c.meaning)}"><dt>{text(_arrowed(c))}</dt><dd>{text(c.text(e))}'
        f"{_small(c.interval(e))}</dd></div>"
        for c in shown
    )
    return f'<div class="card tiles"><h3>{name}</h3><dl>{tiles}</dl></div>'


def _cell(column: Column, e: Evaluation, mark: str | None) -> str:
    kind = f" class={mark}" if mark else ""
    return f"<td{kind}>{text(column.text(e))}{_small(column.spread(e))}</td>"


def _head(column: Column) -> str:
    return f'<th scope=row title="{text(column.meaning)}">{text(_arrowed(column))}</th>'


def _arrowed(column: Column) -> str:
    return column.label + {"higher": " ↑", "lower": " ↓"}.get(column.better, "")


def _small(words: str) -> str:
    return f"<small>{text(words)}</small>" if words else ""


def _legend(marks: Sequence[str], evaluations: Sequence[Evaluation]) -> str:
    said = ["★ the best of its row"] if "best" in marks else []
    if "noise" in marks:
        said.append("≈ no worse than the best beyond noise (95 %, paired bootstrap)")
    if columns.noise_known(evaluations):
        said.append("± half the 95 % interval, from resampling the test data")
    return f"<p class=hint>{text('; '.join(said))}.</p>" if said else ""


def figures(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Every figure that has a line for each model."""
    caption = "Filled dots are the best of their scale."
    if columns.noise_known(evaluations):
        caption += " The bars are 95 % intervals."
    elif any("accuracy" in e.metrics for e in evaluations):
        caption += " The bar at the accuracy is its 95 % sampling interval."
    yield parts.figure("Side by side", plots.comparison(evaluations), caption)
    if _all(evaluations, "reliability"):
        caption = (
            "On the dashed line, a model that says 80 % is right 80 % of the time. Below it, it is over-confident."
        )
        yield parts.figure("Is confidence honest?", plots.reliability_overlay(evaluations), caption)
    if _all(evaluations, "coverage"):
        curves = {e.name: e.curves["coverage"] for e in evaluations}
        yield parts.figure("Do the intervals hold?", plots.coverage(curves), detail.COVERAGE)
    if _all(evaluations, "risk_coverage"):
        curves = {e.name: e.curves["risk_coverage"] for e in evaluations}
        yield parts.figure("Answering only when sure", stress.risk_coverage(curves), detail.DECLINED)
    if _all(evaluations, "corruption"):
        sweeps = {e.name: detail.sweep(e) for e in evaluations}
        yield parts.figure("Spoilt images", stress.severity(sweeps), "Means over the corruptions.")
    if _all(evaluations, "attack"):
        curves = {e.name: e.curves["attack"] for e in evaluations}
        yield parts.figure("Under attack", stress.attack(curves), detail.attack_caption(evaluations[0]))
    if all(e.cost.get("predict_seconds") and e.metrics.keys() & {"nll", "rmse"} for e in evaluations):
        caption = "Down is better, left is cheaper; all samples of a prediction are counted."
        yield parts.figure("What does quality cost?", plots.quality_and_cost(evaluations), caption)


def _all(evaluations: Sequence[Evaluation], curve: str) -> bool:
    return all(e.curves.get(curve) for e in evaluations)
