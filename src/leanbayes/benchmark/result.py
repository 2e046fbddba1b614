"""The results of `benchmark` and `scaling`: tables, JSON and figures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import files
from ..report.figure import canvas, colour, legend, style, svg
from ..report.table import as_text, table
from ..timing import Ratio

MEASURES = {
    "step": "training step / plain step",
    "batch": "batch predicted / plain pass",
    "single": "datum predicted / plain pass",
}
"""What is timed, and beside what."""


@dataclass(frozen=True)
class Timed:
    """One network: its size beside the plain one, and how many times as long it takes.

    step: a training step. batch, single: a prediction of all data of a batch, and of one, beside one pass of the plain
    network. parameters: in use, in multiples of the plain network's. note: why it was not timed, if it was not.
    """

    name: str
    parameters: float = 1.0
    step: Ratio | None = None
    batch: Ratio | None = None
    single: Ratio | None = None
    note: str = ""


@dataclass(frozen=True)
class Benchmark:
    """The costs of methods on one network; printing gives the table.

    rows: the plain network first. settings: what the times depend on. notes: what to know about them.
    """

    rows: tuple[Timed, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        samples, data = self.settings.get("samples", "?"), self.settings.get("data", "?")
        predictions = [f"{data} data, {samples} samples", f"one datum, {samples} samples"]
        header = ["", "parameters", "training step", *predictions, ""]
        rows = []
        for row in self.rows:
            cells = ["-" if ratio is None else str(ratio) for ratio in (row.step, row.batch, row.single)]
            rows.append([row.name, "-" if row.note else f"{row.parameters:.3g}x", *cells, row.note])
        about = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        explained = "median over turns and its 95 % interval; predictions in passes of the plain network"
        return "\n".join([as_text(table(header, rows)), explained, about, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {"rows": [asdict(row) for row in self.rows], "settings": dict(self.settings), "notes": list(self.notes)}

    def to_svg(self) -> str:
        """A figure: for each measure, how many times as long each method takes, with intervals."""
        shown = [row for row in self.rows if row.step is not None][::-1]
        with canvas(columns=len(MEASURES), width=11, height=1.2 + 0.34 * len(shown)) as (figure, axes):
            for number, (ax, (name, label)) in enumerate(zip(axes.flat, MEASURES.items(), strict=True)):
                ratios = [vars(row)[name] for row in shown]
                middle = [r.median for r in ratios]
                errors = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
                ax.errorbar(middle, range(len(shown)), xerr=errors, fmt="o", color=colour(number), markersize=5)
                ax.axvline(1.0, color="#5d6877", linewidth=0.8)
                _logarithmic(ax.xaxis)
                ax.set_yticks(range(len(shown)), [row.name for row in shown] if number == 0 else [""] * len(shown))
                ax.set_xlabel(label)
            return svg(figure, "What each method costs beside the plain network")

    def save_svg(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure of `to_svg` to a file; returns its path."""
        return files.write_text(path, self.to_svg())


@dataclass(frozen=True)
class Scaling:
    """How the time of a method grows with something; printing it gives the table.

    values: of what varies. seconds: of every measure at each of them, the least over turns. slopes: the power of what
    varies that the seconds grow with, by least squares on logarithms; 1 is proportional, 0 constant.
    """

    method: str
    vary: str
    values: tuple[float, ...]
    seconds: Mapping[str, tuple[float, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def slopes(self) -> dict[str, float]:
        """The power that the seconds of every measure grow with."""
        return {name: slope(self.values, seconds) for name, seconds in self.seconds.items()}

    def __str__(self) -> str:
        names = {"step": "training step, ms", "batch": "prediction of a batch, ms", "single": "of one datum, ms"}
        rows = [
            [f"{value:g}", *(f"{1000 * seconds[at]:.2f}" for seconds in self.seconds.values())]
            for at, value in enumerate(self.values)
        ]
        rows.append(["power", *(f"{value:.2f}" for value in self.slopes.values())])
        about = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        header = [f"{self.method}, {self.vary}", *(names[name] for name in self.seconds)]
        return "\n".join([as_text(table(header, rows)), about, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {**asdict(self), "slopes": self.slopes}

    def to_svg(self) -> str:
        """A figure: seconds against what varies, on logarithmic axes."""
        with canvas() as (figure, ax):
            for number, (name, seconds) in enumerate(self.seconds.items()):
                label = f"{MEASURES[name].partition(' /')[0]} (power {self.slopes[name]:.2f})"
                ax.plot(self.values, seconds, label=label, **style(number))
            _logarithmic(ax.xaxis)
            _logarithmic(ax.yaxis)
            ax.set_xlabel(f"{self.vary} of {self.method}")
            ax.set_ylabel("seconds")
            legend(ax)
            return svg(figure, f"Seconds against {self.vary}")

    def save_svg(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure of `to_svg` to a file; returns its path."""
        return files.write_text(path, self.to_svg())


def slope(values: tuple[float, ...], seconds: tuple[float, ...]) -> float:
    """The slope of a straight line through logarithms, by least squares.

    >>> round(slope((1.0, 2.0, 4.0), (3.0, 6.0, 12.0)), 6)
    1.0
    """
    x, y = [math.log(v) for v in values], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def _logarithmic(axis: Any) -> None:
    """A logarithmic axis whose ticks are plain numbers: 1, 2, 5, 10, ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis._set_axes_scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
