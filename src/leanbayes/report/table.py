"""Tables for the terminal: rows of models, columns of quality and cost, the best value of each column marked."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from . import columns

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ..evaluate.result import Evaluation


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: Collection[tuple[int, int]] = ()) -> Table:
    """A rich table of text; the first column names the row, the others are numbers.

    best: cells (row, column) to mark: bold, and with an asterisk for where there is no bold. The mark goes before the
    number so that digits stay under digits.

    >>> print(as_text(table(["model", "ECE"], [["a", "0.1"], ["b", "0.2"]], best={(0, 1)})))
     model    ECE
     ────────────
     a       *0.1
     b        0.2
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for column, name in enumerate(header):
        result.add_column(Text(name), justify="right" if column else "left", no_wrap=True)
    for row, cells in enumerate(rows):
        marks = [(row, column) in best for column in range(len(cells))]
        result.add_row(
            *(Text(f"*{c}", style="bold green") if m else Text(c) for c, m in zip(cells, marks, strict=True))
        )
    return result


def comparison_table(evaluations: Sequence[Evaluation]) -> RenderableType:
    """One row a model: the main numbers of quality, then of cost."""
    from rich.console import Group

    quality = columns.quality(evaluations, full=False)
    costs = [c for c in columns.cost(evaluations) if c.key in ("parameters", "train_seconds", "predict_seconds")]
    shown = quality + costs
    best = {(row, at) for at, c in enumerate(shown, 1) for row in columns.best(c, evaluations)}
    rows = [[e.name, *(c.text(e) for c in shown)] for e in evaluations]
    notes = [f"{e.name}: {note}" for e in evaluations for note in e.notes]
    footer = conditions(evaluations) + ("; * best of its column" if best else "")
    header = ["Model", *(c.label.replace(" ", "\n", 1) for c in shown)]  # two lines keep it narrow
    return Group(table(header, rows, best), _small("", footer, *notes))


def evaluation_table(evaluation: Evaluation) -> RenderableType:
    """One row a metric, with what it means: the whole answer about one model."""
    from rich.console import Group

    single, intervals, ranks = columns.grouped(evaluation)
    shown = single + columns.cost([evaluation])
    main = table([evaluation.name, "", ""], [[c.label, c.text(evaluation), c.meaning] for c in shown])
    main.columns[2].justify, main.columns[2].style, main.columns[2].no_wrap = "left", "dim", False
    parts: list[RenderableType] = [main]
    if intervals:
        rows = [[level, *(c.text(evaluation) for c in pair)] for level, pair in intervals.items()]
        parts += ["", table(["Interval", "Truths inside", "Mean width"], rows)]
    if ranks:
        rows = [[*name, *(c.text(evaluation) for c in three)] for name, three in ranks.items()]
        other = table(["Out of domain", "by", "AUROC", "AUPR", "FPR95"], rows)
        other.columns[1].justify = "left"
        parts += ["", other]
    return Group(*parts, _small("", conditions([evaluation]), *evaluation.notes))


def as_text(renderable: RenderableType, width: int = 200) -> str:
    """What rich would print, as plain text without colours or trailing blanks."""
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().strip("\n").splitlines())


def _small(*lines: str) -> RenderableType:
    from rich.text import Text

    return Text("\n".join(lines), style="dim")


def conditions(evaluations: Sequence[Evaluation]) -> str:
    """On what and how, if it was the same for all: "1,000 test data; 32 samples, seed 0"."""
    counts = {e.count for e in evaluations}
    parts = [f"{min(counts):,} test data" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,} test data"]
    settings = [e.settings for e in evaluations if columns.is_sampled(e)]
    if settings:
        samples, seeds = {s["samples"] for s in settings}, {s.get("seed") for s in settings}
        parts.append(f"{samples.pop()} samples" if len(samples) == 1 else f"{min(samples)} to {max(samples)} samples")
        parts[-1] += f", seed {seeds.pop()}" if len(seeds) == 1 else ""
    return "; ".join(parts)
