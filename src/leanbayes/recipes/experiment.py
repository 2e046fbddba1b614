"""An experiment as data: cells (what is measured where, for how many seeds), and how they become rows and a figure."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import ConfigError
from . import catalogue
from .jobs import Jobs
from .results import Measured, Row, rows_of_points


@dataclass(frozen=True)
class Cell:
    """One line of a table before it is measured: what, on which data, for which seeds.

    setting: what varies from line to line: a width, a density, a sample count.
    key: all that the measurements depend on, except for the seed. Finished pieces are found by it.
    measure: is given the `Jobs` and the seed, and returns metrics and curves (see `results.Measured`).
    seeds: how many, or which; None for a piece in which nothing is random, 0 for figures that are only cited.
    paper: what the paper prints; a function of (method, setting) where a piece makes several rows.
    label: the name of the piece in the progress and in `leanbayes reproduce --list`.
    """

    dataset: str
    method: str
    setting: Any
    key: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[Jobs, int], Measured] = lambda jobs, seed: {}
    seeds: int | Sequence[int] | None = 1
    paper: Mapping[str, float] | Callable[[str, Any], Mapping[str, float]] = field(default_factory=dict)
    label: str = ""

    def pieces(self) -> list[Piece]:
        """A piece for every seed."""
        if self.seeds is None:
            return [Piece(self, None)]
        seeds = range(self.seeds) if isinstance(self.seeds, int) else self.seeds
        return [Piece(self, seed) for seed in seeds]

    def rows(self, runs: Sequence[Measured]) -> Iterator[Row]:
        """A row with the metrics and curves of the runs, and one for every point of their list "rows"."""
        paper = self.paper if callable(self.paper) else lambda method, setting: self.paper
        if not runs or any(name != "rows" for run in runs for name in run):
            yield Row(self.dataset, self.method, self.setting, runs, paper(self.method, self.setting))
        for row in rows_of_points(self.dataset, self.method, self.setting, runs):
            known = paper(row.method, row.setting) if callable(self.paper) else {}
            yield Row(row.dataset, row.method, row.setting, row.runs, known)


@dataclass(frozen=True)
class Piece:
    """A cell under one seed: the smallest part of an experiment that is run, kept and resumed by itself."""

    cell: Cell
    seed: int | None

    @property
    def key(self) -> dict[str, Any]:
        """All that the measurements depend on."""
        return {**self.cell.key, **({} if self.seed is None else {"seed": self.seed})}

    @property
    def label(self) -> str:
        """The name of the piece."""
        cell = self.cell
        name = cell.label or f"{cell.method} ({cell.setting}) on {cell.dataset}"
        return name if self.seed is None else f"{name}, seed {self.seed}"

    def matches(self, pattern: str) -> bool:
        """Whether the label matches a pattern of the shell, or contains the text; several are separated by "|"."""
        return any(part in self.label or fnmatchcase(self.label, part) for part in pattern.split("|"))


Results = Sequence[tuple[Cell, list[dict[str, Any]]]]
"""The cells of an experiment, each with the measurements of its seeds."""


def rows_of_cells(results: Results) -> Iterator[Row]:
    """The rows of every cell, in the order of the cells."""
    for cell, runs in results:
        yield from cell.rows(runs)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    name: as in the catalogue.
    cells: of a preset ("smoke", "cpu" or "paper"), in the order in which they are run.
    rows: of the results; one or more for every cell by default.
    figure: draws a result as SVG.
    """

    name: str
    cells: Callable[[str], Iterable[Cell]]
    rows: Callable[[Results], Iterable[Row]] = rows_of_cells
    figure: Callable[[Mapping[str, Any]], str] | None = None

    def pieces(self, preset: str) -> list[Piece]:
        """All pieces of a preset."""
        return [piece for cell in self.cells(preset) for piece in cell.pieces()]

    def run(self, preset: str, jobs: Jobs, only: str = "") -> Results:
        """Run every piece whose label matches ``only``, those of earlier runs excepted; returns what they measured."""
        results: list[tuple[Cell, list[dict[str, Any]]]] = []
        cells = list(self.cells(preset))
        count = itertools.count(1)
        total = sum(len(cell.pieces()) for cell in cells)
        for cell in cells:
            runs: list[dict[str, Any]] = []
            for piece in cell.pieces():
                label = f"[{next(count)}/{total}] {piece.label}"
                if piece.matches(only):
                    work = partial(cell.measure, jobs, piece.seed or 0)
                    runs.append(jobs(piece.key, work, label))
            results.append((cell, runs))
        return results


def grid(*, overrides: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = (), **axes: Any) -> list[Any]:
    """Every combination of the axes as a dict, the last axis varying fastest.

    overrides: pairs (where, changes). A combination that has all values of ``where`` gets the ``changes``, or is left
    out if they are None. Later overrides win.

    >>> found = grid(data=["mnist", "cifar10"], method=["dense", "sparse"], seeds=[3], overrides=[
    ...     ({"data": "cifar10"}, {"seeds": 1}), ({"data": "cifar10", "method": "dense"}, None)])
    >>> [(one["data"], one["method"], one["seeds"]) for one in found]
    [('mnist', 'dense', 3), ('mnist', 'sparse', 3), ('cifar10', 'sparse', 1)]
    """
    found = []
    for values in itertools.product(*axes.values()):
        cell: dict[str, Any] | None = dict(zip(axes, values, strict=True))
        values_of = dict(cell or {})
        for where, changes in overrides:
            if unknown := set(where) - set(axes):
                raise ConfigError(f"overrides: expected some of {', '.join(axes)}, received {', '.join(unknown)}")
            if cell is not None and all(values_of[name] == value for name, value in where.items()):
                cell = None if changes is None else {**cell, **changes}
        if cell is not None:
            found.append(cell)
    return found


def reproduce(
    name: str,
    preset: str = "smoke",
    *,
    resume: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    only: str = "",
) -> dict[str, Any]:
    """Run a recipe; the result has the one shape that documents, reports and checks read.

    resume: a folder for finished pieces. tell: called with a line of text as the run goes on.
    only: the pieces that the result is made of, by a text or pattern; all of them by default.
    """
    chosen, jobs = catalogue.find(name, preset).load(), Jobs(resume, tell)
    measured = [(cell, runs) for cell, runs in chosen.run(preset, jobs, only) if runs or not only]
    rows = list(chosen.rows(measured))
    return {
        "recipe": name,
        "preset": preset,
        "command": f"leanbayes reproduce {name} --preset {preset}" + (f" --only {shlex.quote(only)}" if only else ""),
        "version": __version__,
        "seeds": max([1, *(len(row.runs) for row in rows)]),
        "seconds": round(jobs.seconds, 1),
        "machines": jobs.machines,
        "rows": [row.to_dict() for row in rows],
    }
