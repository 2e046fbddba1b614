"""Results of version 0.1, which had no curves, in the present format: no number is changed, added or lost.

`python -m leanbayes.recipes.upgrade results/*.json` rewrites files in place. In version 0.1 a point of a curve was a
row of its own ("vanilla, bin" with the edge of the bin as its setting), or a metric with a number in its name
("tail 3").
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import files

# recipe: for rows whose method matches, the method of the row they belong to, the curve, and its coordinate
_POINTS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "patch-calibration": ((r"(.+), bin", r"\1", "calibration", "edge"),),
    "patch-prior": ((r"(.+), function", r"\1, drawn", "functions", "x"),),
    "sparse-criteria": ((r"average IoU", r"average IoU", "average IoU", "step"),),
    "variance-criterion": (
        (r"epoch", "variance layer", "epochs", "epoch"),
        (r"histogram", "variance layer", "histogram", "log10 kappa"),
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
        return int(row["curves"]["epochs"][-1]["epoch"])
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
