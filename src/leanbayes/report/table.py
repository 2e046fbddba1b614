"""Tables for the terminal: rows of models, columns of quality and cost, the best value of each column marked."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import columns
from .sections import Section, sections

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ..evaluation.result import Evaluation

MARKS = {"best": ("*", "bold green"), "noise": ("~", "green")}


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], marks: Mapping[tuple[int, int], columns.Mark] | None = None
) -> Table:
    """A rich table of text; the first column names the row, the others are numbers.

    marks: of cells (row, column): "best" is bold with an asterisk, "noise" has a tilde, both before the number.

    >>> print(as_text(table(["model", "ECE"], [["a", "0.1"], ["b", "0.2"]], {(0, 1): "best", (1, 1): "noise"})))
     model    ECE
     ────────────
     a       *0.1
     b       ~0.2
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for column, name in enumerate(header):
        result.add_column(Text(name), justify="right" if column else "left", no_wrap=True)
    for row, cells in enumerate(rows):
        shown = []
        for column, cell in enumerate(cells):
            sign, style = MARKS.get((marks or {}).get((row, column), ""), ("", ""))
            value, _, spread = cell.partition("\n")
            text = Text(sign + value, style=style)
            shown.append(text.append("\n" + spread, style="dim not bold") if spread else text)
        result.add_row(*shown)
    return result


def comparison_table(evaluations: Sequence[Evaluation]) -> RenderableType:
    """A table with a row for each model: the main metrics with half their 95 % intervals, then costs."""
    from rich.console import Group

    quality = columns.quality(evaluations, full=False)
    costs = [c for c in columns.cost(evaluations) if c.key in ("parameters", "train_seconds", "predict_seconds")]
    shown = quality + costs
    marks = {(row, at): mark for at, c in enumerate(shown, 1) for row, mark in columns.marks(c, evaluations).items()}
    rows = [
        [e.name, *("\n".join(filter(None, (c.text(e), c.spread(e) if c in quality else ""))) for c in shown)]
        for e in evaluations
    ]
    notes = [f"{e.name}: {note}" for e in evaluations for note in e.notes]
    header = ["Model", *(c.label.replace(" ", "\n", 1) for c in shown)]
    footer = "; ".join(filter(None, (conditions(evaluations), legend(marks, evaluations))))
    return Group(table(header, rows, marks), _small("", footer, *notes))


def legend(marks: Mapping[tuple[int, int], columns.Mark], evaluations: Sequence[Evaluation]) -> str:
    """The meanings of the marks that are used."""
    parts = ["* best of its column"] if "best" in marks.values() else []
    if "noise" in marks.values():
        parts.append("~ no worse than the best beyond noise (95 %, paired bootstrap)")
    if columns.noise_known(evaluations):
        parts.append("± half the 95 % interval")
    return "; ".join(parts)


def evaluation_table(evaluation: Evaluation) -> RenderableType:
    """A table with a row for each metric and its meaning, for one model."""
    from rich.console import Group

    parts: list[RenderableType] = []
    for number, section in enumerate(sections(evaluation)):
        parts += ["", _explained(section, evaluation.name if not number else section.title)]
    return Group(*parts[1:], _small("", conditions([evaluation]), *evaluation.notes))


def _explained(section: Section, title: str) -> Table:
    """The table of a section, with meanings in its last column."""
    if not section.meanings:
        return table([title if not section.header[0] else section.header[0], *section.header[1:]], section.rows)
    rows = [[*row, meaning] for row, meaning in zip(section.rows, section.meanings, strict=True)]
    result = table([title, *section.header[1:], ""], rows)
    last = result.columns[-1]
    last.justify, last.style, last.no_wrap = "left", "dim", False
    return result


def as_text(renderable: RenderableType, width: int = 200) -> str:
    """A rich renderable as plain text without colours or trailing blanks."""
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().strip("\n").splitlines())


def _small(*lines: str) -> RenderableType:
    from rich.text import Text

    return Text("\n".join(lines), style="dim")


def conditions(evaluations: Sequence[Evaluation]) -> str:
    """The conditions that all evaluations share, such as "1,000 test data; 32 samples, seed 0; intervals by image"."""
    counts = {e.count for e in evaluations}
    parts = [f"{min(counts):,} test data" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,} test data"]
    settings = [e.settings for e in evaluations if columns.is_sampled(e)]
    if settings:
        samples, seeds = {s["samples"] for s in settings}, {s.get("seed") for s in settings}
        number = samples.pop() if len(samples) == 1 else f"{min(samples)} to {max(samples)}"
        parts.append(f"{number} sample{'' if number == 1 else 's'}")
        parts[-1] += f", seed {seeds.pop()}" if len(seeds) == 1 else ""
    if resampled := columns.resampled(evaluations):
        parts.append(f"intervals by {resampled}")
    return "; ".join(parts)
