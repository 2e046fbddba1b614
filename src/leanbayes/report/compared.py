"""The top of a page: quality beside cost, and the figures in which several models are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import columns, detail, parts, plots, scatter, stress
from .column import Column
from .parts import text

if TYPE_CHECKING:
    from ..evaluation.result import Evaluation


def overview(evaluations: Sequence[Evaluation]) -> str:
    """Tiles for one model; for several a scatter plot of quality against cost, and tables with a row for each."""
    quality, cost = columns.quality(evaluations, full=False), columns.cost(evaluations)
    if len(evaluations) == 1:
        return _tiles("Quality", quality, evaluations[0]) + _tiles("Cost", cost, evaluations[0])
    return _scatter(evaluations) + _tables(evaluations, quality, cost)


def _tiles(name: str, shown: Sequence[Column], e: Evaluation) -> str:
    if not shown:
        return ""
    tiles = "".join(
        f'<div title="{text(c.meaning)}"><dt>{text(_arrowed(c))}</dt><dd>{text(c.text(e))}'
        f"{_small(c.interval(e))}</dd></div>"
        for c in shown
    )
    return f'<div class="card tiles"><h3>{name}</h3><dl>{tiles}</dl></div>'


def _scatter(evaluations: Sequence[Evaluation]) -> str:
    """The scatter plot, once for wide windows and once for phones; the style sheet shows one of them."""
    if (found := scatter.axes_of(evaluations)) is None:
        return ""
    better = "Up" if found[1].better == "higher" else "Down"
    caption = f"{better} is better, left is cheaper."
    if len(scatter.front_of(evaluations)) > 1:
        caption += " The grey line is the Pareto front: models that no other beats in both."
    if found[0].key == "predict_seconds":
        caption += " Times include all samples and were measured once; factors below three may be noise."
    wide, narrow = (scatter.quality_and_cost(evaluations, width) for width in (11.0, 4.6))
    picture = f"<div class=desktop>{wide}</div><div class=phone>{narrow}</div>"
    return parts.figure("Quality against cost", picture, caption)


def _tables(evaluations: Sequence[Evaluation], quality: Sequence[Column], cost: Sequence[Column]) -> str:
    marks = {c.key: columns.marks(c, evaluations) for c in quality}
    cards = []
    for name, shown in (("Quality", quality), ("Cost", cost)):
        heads = "".join(f'<th scope=col title="{text(c.meaning)}">{text(_arrowed(c))}</th>' for c in shown)
        rows = "".join(
            f"<tr><th scope=row>{text(e.name)}</th>"
            + "".join(_cell(c, e, marks.get(c.key, {}).get(row)) for c in shown)
            + "</tr>"
            for row, e in enumerate(evaluations)
        )
        head = f"<thead><tr><th scope=col>{name}</th>{heads}</tr></thead>"
        table = f"<table class=models>{head}<tbody>{rows}</tbody></table>"
        cards.append(f"<div class=card><div class=scroll>{table}</div></div>" if shown else "")
    legend = _legend([mark for found in marks.values() for mark in found.values()], evaluations)
    return f"<div class=beside>{''.join(cards)}</div>{legend}"


def _cell(column: Column, e: Evaluation, mark: str | None) -> str:
    kind = f" class={mark}" if mark else ""
    return f"<td{kind}>{text(column.text(e))}{_small(column.spread(e))}</td>"


def _arrowed(column: Column) -> str:
    return column.label + {"higher": " ↑", "lower": " ↓"}.get(column.better, "")


def _small(words: str) -> str:
    return f"<small>{text(words)}</small>" if words else ""


def _legend(marks: Sequence[str], evaluations: Sequence[Evaluation]) -> str:
    words = ["★ the best of its column"] if "best" in marks else []
    if "noise" in marks:
        words.append("≈ not worse than the best beyond noise (95 %, paired bootstrap)")
    if columns.noise_known(evaluations):
        words.append("± half the 95 % interval, from resampling the test data")
    return f"<p class=hint>{text('; '.join(words))}.</p>" if words else ""


def figures(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """The figures with a line for each model."""
    if _all(evaluations, "reliability"):
        caption = "On the dashed line, a model that says 80 % is right 80 % of the time. Below it is over-confident."
        yield parts.figure("Calibration", plots.reliability_overlay(evaluations), caption)
    if _all(evaluations, "coverage"):
        curves = {e.name: e.curves["coverage"] for e in evaluations}
        yield parts.figure("Coverage of the intervals", plots.coverage(curves), detail.COVERAGE)
    if _all(evaluations, "risk_coverage"):
        curves = {e.name: e.curves["risk_coverage"] for e in evaluations}
        yield parts.figure("Answering only when sure", stress.risk_coverage(curves), detail.DECLINED)
    if _all(evaluations, "corruption"):
        sweeps = {e.name: detail.sweep(e) for e in evaluations}
        yield parts.figure("Corrupted images", stress.severity(sweeps), "Means over the corruptions.")
    if _all(evaluations, "attack"):
        curves = {e.name: e.curves["attack"] for e in evaluations}
        yield parts.figure("Under attack", stress.attack(curves), detail.attack_caption(evaluations[0]))


def _all(evaluations: Sequence[Evaluation], curve: str) -> bool:
    return all(e.curves.get(curve) for e in evaluations)
