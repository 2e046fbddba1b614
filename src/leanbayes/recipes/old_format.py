"""Pieces and results of version 0.1, which had no curves, in the present format; no number is changed, added or lost.

In version 0.1 coordinates were part of names: a piece had a metric "bin|0.5|share", a result a row "vanilla, bin" with
the setting 0.5, or a metric "tail 3". Pieces are converted as they are read, and results by
`python -m leanbayes.recipes.old_format results/*.json`, which rewrites files in place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from .results import Measured, Metrics, Point

if TYPE_CHECKING:
    from .experiment import Cell

# recipe: curve, and pattern of the names of its values; named groups are coordinates, "metric" and "curve" the names
_COST = "seconds|x dense VI|x plain|bytes|share of bytes|nominal share|compiled"
_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "baselines": (("rows", r"(?:(?P<number>\d+) )?(?P<metric>.+)"),),
    "nested-cost": (("rows", r"(?P<method>[^:]+): (?P<metric>.+)"),),
    "nested-tails": (("probability", r"(?P<curve>.+) (?P<node>\d+)"),),
    "patch-calibration": (
        ("calibration", r"bin\|(?P<edge>[^|]+)\|(?P<metric>.+)"),
        ("rows", r"(?P<method>temperature)\|(?P<metric>.+)"),
    ),
    "patch-corruptions": (("corruptions", r"(?P<corruption>[^|]+)\|(?P<severity>\d+)\|(?P<metric>.+)"),),
    "patch-regression": (("splits", r"(?P<split>\d+) (?P<metric>.+)"),),
    "patch-samples": (("rows", r"(?P<setting>\d+) (?P<metric>.+)"),),
    "sparse-corruption": (("rows", r"(?P<setting>\d) (?P<metric>.+)"),),
    "sparse-cost": (("rows", rf"(?P<method>.+?)(?:, (?P<setting>[\d.]+))? (?P<metric>{_COST})"),),
    "sparse-criteria": (
        ("rows", r"(?P<method>start|middle|end) (?P<metric>removed|kept) (?P<setting>.+)"),
        ("removed", r"(?P<curve>update) (?P<step>\d+)"),
    ),
    "variance-attack": (("rows", r"(?P<method>.+?) (?P<setting>\d+) (?P<metric>.+)"),),
    "variance-collapse": (("rows", r"(?P<setting>\d+) (?P<metric>.+)"),),
    "variance-criterion": (
        ("", r"(?P<curve>epoch)\|(?P<epoch>[^|]+)\|(?P<metric>.+)"),
        ("", r"(?P<curve>histogram)\|(?P<edge>[^|]+)\|(?P<metric>.+)"),
        ("", r"(?P<curve>zeroed|mean|by variance)\|(?P<share>[^|]+)\|(?P<metric>.+)"),
    ),
}
_METHODS = {"temperature": "vanilla, temperature", **{s: f"IoU at the {s}" for s in ("start", "middle", "end")}}


def measurements(recipe: str, cell: Cell, metrics: Metrics) -> Measured:
    """The measurements of a piece whose metrics had coordinates in their names."""
    found: dict[str, Any] = {}
    points: dict[tuple[Any, ...], Point] = {}
    patterns = () if recipe == "baselines" and "widths" not in cell.key else _NAMES.get(recipe, ())
    for name, value in metrics.items():
        match = next(((curve, m) for curve, pattern in patterns if (m := re.fullmatch(pattern, name))), None)
        if match is None:
            found[name] = value
            continue
        curve, groups = match[0], {k: _number(text) for k, text in match[1].groupdict().items() if text}
        groups |= {name: float(groups[name]) for name in ("edge", "share") if name in groups}
        metric, curve = str(groups.pop("metric", curve)), str(groups.pop("curve", curve))
        if recipe == "baselines":
            groups = {"method": f"{cell.method}, width {100 * cell.key['widths'][groups.get('number', 0)]:g} %"}
        elif "method" in groups:
            groups["method"] = _METHODS.get(groups["method"], groups["method"])
        where = (curve, *groups.values())
        if where not in points:
            points[where] = groups
            found.setdefault("average IoU" if curve == "update" else curve, []).append(groups)
        points[where][metric] = value
    return found


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return float(text) if re.fullmatch(r"[-+.\de]+", text) and re.search(r"\d", text) else text


# recipe: for rows whose method matches, the method of the row they belong to, the curve, and its coordinate
_POINTS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "patch-calibration": ((r"(.+), bin", r"\1", "calibration", "edge"),),
    "patch-prior": ((r"(.+), function", r"\1, drawn", "functions", "x"),),
    "sparse-criteria": ((r"average IoU", r"average IoU", "average IoU", "step"),),
    "variance-criterion": (
        (r"epoch", "variance layer", "epoch", "epoch"),
        (r"histogram", "variance layer", "histogram", "edge"),
        (r"(zeroed|mean|by variance)", "variance layer", r"\1", "share"),
    ),
}


def upgrade(result: dict[str, Any]) -> dict[str, Any]:
    """The result with its curves in the field "curves" of the rows; one in the present format is returned as it is.

    >>> row = {"dataset": "d", "method": "vanilla", "setting": 20, "metrics": {"nll": {"mean": 1.0}}, "paper": {}}
    >>> low = {**row, "method": "vanilla, bin", "setting": 0.5, "metrics": {"share": {"mean": 0.2}}}
    >>> upgrade({"recipe": "patch-calibration", "rows": [row, low]})["rows"][0]["curves"]
    {'calibration': [{'edge': 0.5, 'share': {'mean': 0.2}}]}
    """
    recipe, rows = result["recipe"], list[dict[str, Any]]()
    for row in result["rows"]:
        if "curves" not in row and recipe == "nested-tails":
            rows.append(_tails(row))
        elif "curves" in row or (place := _place(recipe, row["method"])) is None:
            rows.append(dict(row))
        else:
            method, curve, coordinate = place
            at = int(row["setting"]) if coordinate == "epoch" else row["setting"]
            target = next((r for r in rows if (r["dataset"], r["method"]) == (row["dataset"], method)), None)
            if target is None:
                target = {"dataset": row["dataset"], "method": method, "setting": None, "metrics": {}, "paper": {}}
                rows.append(target)
            target.setdefault("curves", {}).setdefault(curve, []).append({coordinate: at, **row["metrics"]})
    for row in rows:
        row["setting"] = _setting(recipe, row)
    order = ("dataset", "method", "setting", "metrics", "curves", "paper")
    return {**result, "rows": [{name: row[name] for name in order if name in row} for row in rows]}


def _place(recipe: str, method: str) -> tuple[str, str, str] | None:
    """The method of the row, the curve and the coordinate of a row that is a point of a curve."""
    for pattern, target, curve, coordinate in _POINTS.get(recipe, ()):
        if match := re.fullmatch(pattern, method):
            return match.expand(target), match.expand(curve), coordinate
    return None


def _setting(recipe: str, row: dict[str, Any]) -> Any:
    """The setting of a row that had none of its own."""
    if row["setting"] is not None:
        return row["setting"]
    if recipe == "patch-prior":
        return len(row["curves"]["functions"])
    if recipe == "variance-criterion":
        return int(row["curves"]["epoch"][-1]["epoch"])
    return "first five criteria"


def _tails(row: dict[str, Any]) -> dict[str, Any]:
    """A row of nested-tails: the metrics "tail 1", "tail 2", ... as a curve."""
    metrics = {name: value for name, value in row["metrics"].items() if not name.startswith("tail ")}
    points = [
        {"node": int(name.removeprefix("tail ")), "probability": value}
        for name, value in row["metrics"].items()
        if name not in metrics
    ]
    return {**row, "metrics": metrics, "curves": {"tails": points}}


def main(paths: Sequence[str]) -> None:
    """Rewrite result files in the present format."""
    for path in map(Path, paths):
        old = json.loads(path.read_text(encoding="utf-8"))
        if (new := upgrade(old)) != old:
            files.write_text(path, json.dumps(new, indent=1, allow_nan=False) + "\n")
            print(f"rewrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
