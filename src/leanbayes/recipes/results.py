"""The result of an experiment: rows of metrics and curves over seeds, beside what the paper prints. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Metrics = dict[str, float]
Point = dict[str, Any]
"""A point of a curve: its coordinates, and the values there."""
Measured = Mapping[str, Any]
"""What a piece of an experiment measures: a number for every metric, a list of points for every curve.

The list called "rows" is special: each of its points becomes a row of the result. The point may name the "method" and
the "setting" of that row, which otherwise are those of the piece.
"""


@dataclass(frozen=True)
class Row:
    """One line of a table: what each seed measured, and what the paper prints there.

    setting: what varies from line to line: a width, a density, a sample count.

    >>> Row("mnist", "mean-field", 32, [{"accuracy": 0.99}], paper={"accuracy": 0.991}).to_dict()["metrics"]
    {'accuracy': {'mean': 0.99, 'std': None, 'n': 1}}
    """

    dataset: str
    method: str
    setting: str | float
    runs: Sequence[Measured]
    paper: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON: mean, standard deviation and count over the seeds; "curves" only if there are any."""
        names = dict.fromkeys(name for run in self.runs for name in run if name != "rows")
        curves = {name for run in self.runs for name, value in run.items() if isinstance(value, list)}
        shown = {name: [run[name] for run in self.runs if name in run] for name in names}
        found: dict[str, Any] = {"dataset": self.dataset, "method": self.method, "setting": self.setting}
        found["metrics"] = {name: summary(values) for name, values in shown.items() if name not in curves}
        if drawn := {name: average_curve(values) for name, values in shown.items() if name in curves}:
            found["curves"] = drawn
        return {**found, "paper": dict(self.paper)}


def average_curve(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """One curve from those of several seeds: the points in order of their coordinate, with a summary of each value.

    The first entry of a point is its coordinate. Points that only some of the seeds have are summaries of those.

    >>> average_curve([[{"epoch": 1, "loss": 3.0}], [{"epoch": 1, "loss": 5.0}]])
    [{'epoch': 1, 'loss': {'mean': 4.0, 'std': 1.4142135623730951, 'n': 2}}]
    """
    points = [point for run in runs for point in run]
    if not points:
        return []
    coordinate = next(iter(points[0]))
    found = []
    for at in sorted({point[coordinate] for point in points}):
        mine = [point for point in points if point[coordinate] == at]
        names = dict.fromkeys(name for point in mine for name in point if name != coordinate)
        values = {name: summary([point[name] for point in mine if name in point]) for name in names}
        found.append({coordinate: at, **values})
    return found


def rows_of_points(dataset: str, method: str, setting: Any, runs: Sequence[Measured]) -> Iterator[Row]:
    """A row for every point of the list "rows" that the seeds have measured.

    >>> runs = [{"rows": [{"setting": 1, "nll": 0.5}, {"setting": 20, "nll": 0.4}]}]
    >>> [(row.method, row.setting, row.runs) for row in rows_of_points("digits", "EMP", None, runs)]
    [('EMP', 1, [{'nll': 0.5}]), ('EMP', 20, [{'nll': 0.4}])]
    """
    found: dict[tuple[str, Any], list[Metrics]] = {}
    for run in runs:
        for point in run.get("rows", ()):
            where = point.get("method", method), point.get("setting", setting)
            values = {name: value for name, value in point.items() if name not in ("method", "setting")}
            found.setdefault(where, []).append(values)
    for (name, at), each in found.items():
        yield Row(dataset, name, at, each)


def summary(values: Sequence[float]) -> dict[str, float | int | None]:
    """Mean, sample standard deviation (None for one value) and count.

    Where one of the values is not finite, neither is their mean, which JSON cannot express: it is None. The mean of
    the other values would hide a run that failed.

    >>> summary([1.0, 3.0])
    {'mean': 2.0, 'std': 1.4142135623730951, 'n': 2}
    >>> summary([1.0, float("nan")])
    {'mean': None, 'std': None, 'n': 2}
    """
    count = len(values)
    if not all(math.isfinite(v) for v in values):
        return {"mean": None, "std": None, "n": count}
    mean = sum(values) / count
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1)) if count > 1 else None
    return {"mean": mean, "std": spread, "n": count}


def points_as_rows(rows: Sequence[Mapping[str, Any]], curve: str) -> list[dict[str, Any]]:
    """The points of a curve of all rows that have it, each in the shape of a row; the setting is the coordinate.

    >>> row = {"dataset": "d", "method": "m", "curves": {"loss": [{"epoch": 1, "nll": {"mean": 0.5}}]}}
    >>> points_as_rows([row], "loss")
    [{'dataset': 'd', 'method': 'm', 'setting': 1, 'metrics': {'nll': {'mean': 0.5}}}]
    """
    found = []
    for row in rows:
        for point in row.get("curves", {}).get(curve, ()):
            (_, at), *values = point.items()
            where = {"dataset": row["dataset"], "method": row["method"], "setting": at}
            found.append({**where, "metrics": dict(values)})
    return found
