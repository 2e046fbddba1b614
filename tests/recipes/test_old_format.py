"""Pieces and results of the first version: converted without loss; every result in the repository can be drawn."""

import copy
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from leanbayes.recipes.catalogue import find
from leanbayes.recipes.experiment import Cell
from leanbayes.recipes.old_format import main, measurements, upgrade
from leanbayes.recipes.table import result_table

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*.json"))


def old_row(method, setting, **means):
    metrics = {name: {"mean": mean, "std": None, "n": 1} for name, mean in means.items()}
    return {"dataset": "d", "method": method, "setting": setting, "metrics": metrics, "paper": {}}


OLD = {
    "patch-calibration": [
        old_row("vanilla", 20, nll=1.0),
        old_row("vanilla, temperature", 20, nll=0.9),
        old_row("vanilla, bin", 0.5, share=0.3, accuracy=0.6),
        old_row("vanilla, bin", 1.0, share=0.7, accuracy=0.9),
    ],
    "patch-prior": [
        old_row("EMP", 100, steps=3.0),
        old_row("EMP, function", -1.0, a=1.0),
        old_row("EMP, function", 1.0, a=2.0),
    ],
    "nested-tails": [old_row("BN3", "conv2", **{"moved": 0.1, "tail 1": 0.4, "tail 2": 0.6})],
    "sparse-criteria": [old_row("snr", 0.01, nll=1.0), old_row("average IoU", 25, removed=0.5)],
    "variance-criterion": [
        old_row("epoch", 1.0, ensemble=0.9),
        old_row("histogram", -2.5, before=7.0),
        old_row("zeroed", 0.5, ensemble=0.8),
        old_row("by variance", 0.5, ensemble=0.7),
    ],
}


def means(rows):
    """All numbers of a result that were measured."""
    metrics = [value for row in rows for value in row["metrics"].values()]
    points = [point for row in rows for curve in row.get("curves", {}).values() for point in curve]
    metrics += [value for point in points for value in point.values() if isinstance(value, dict)]
    return sorted(value["mean"] for value in metrics)


@pytest.mark.parametrize("name", list(OLD))
def test_no_number_is_lost(name):
    old = {"recipe": name, "rows": OLD[name]}
    before = copy.deepcopy(old)
    new = upgrade(old)
    assert old == before
    assert means(new["rows"]) == means(old["rows"])
    assert upgrade(new) == new
    (curves,) = [row["curves"] for row in new["rows"] if "curves" in row]
    coordinates = {name: [next(iter(point.values())) for point in points] for name, points in curves.items()}
    assert (
        coordinates
        == {
            "patch-calibration": {"calibration": [0.5, 1.0]},
            "patch-prior": {"functions": [-1.0, 1.0]},
            "nested-tails": {"tails": [1, 2]},
            "sparse-criteria": {"average IoU": [25]},
            "variance-criterion": {"epoch": [1], "histogram": [-2.5], "zeroed": [0.5], "by variance": [0.5]},
        }[name]
    )


@pytest.mark.parametrize(
    ("recipe", "metrics", "found"),
    [
        ("sparse-init", {"nll": 1.0}, {"nll": 1.0}),
        (
            "patch-calibration",
            {"nll": 1.0, "temperature|nll": 0.9, "bin|1|share": 0.7, "bin|1|accuracy": 0.9},
            {
                "nll": 1.0,
                "rows": [{"method": "vanilla, temperature", "nll": 0.9}],
                "calibration": [{"edge": 1.0, "share": 0.7, "accuracy": 0.9}],
            },
        ),
        (
            "baselines",
            {"nll": 1.0, "1 nll": 2.0},
            {"rows": [{"method": "nested, width 25 %", "nll": 1.0}, {"method": "nested, width 100 %", "nll": 2.0}]},
        ),
        (
            "nested-tails",
            {"conv2 1": 0.4, "conv2 2": 0.6},
            {"conv2": [{"node": 1, "probability": 0.4}, {"node": 2, "probability": 0.6}]},
        ),
        ("patch-corruptions", {"fog|3|nll": 1.0}, {"corruptions": [{"corruption": "fog", "severity": 3, "nll": 1.0}]}),
        (
            "sparse-criteria",
            {"start kept mean & snr": 0.5, "update 25": 0.25},
            {
                "rows": [{"method": "IoU at the start", "setting": "mean & snr", "kept": 0.5}],
                "average IoU": [{"step": 25, "removed": 0.25}],
            },
        ),
        (
            "sparse-cost",
            {"dense VI x dense VI": 1.0, "sparse subspace, 0.1 bytes": 9.0},
            {
                "rows": [
                    {"method": "dense VI", "x dense VI": 1.0},
                    {"method": "sparse subspace", "setting": 0.1, "bytes": 9.0},
                ]
            },
        ),
        ("variance-criterion", {"histogram|-2.5|before": 7.0}, {"histogram": [{"edge": -2.5, "before": 7.0}]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_of_metrics_become_coordinates(recipe, metrics, found):
    cell = Cell("d", "nested", 1, {"widths": [0.25, 1.0]})
    assert measurements(recipe, cell, metrics) == found


def test_files_are_rewritten_once(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"recipe": "nested-tails", "rows": OLD["nested-tails"]}))
    main([str(path)])
    assert "rewrote" in capsys.readouterr().out
    main([str(path)])
    assert not capsys.readouterr().out


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_result_can_be_shown_and_drawn(path):
    result = json.loads(path.read_text())
    assert upgrade(result) == result
    assert result["recipe"] in result_table(result)
    figure = find(result["recipe"]).load().figure
    drawn = path.parent / "figures" / f"{path.stem}.svg"
    assert drawn.exists() == (figure is not None)
    if figure is not None:
        ElementTree.fromstring(figure(result))
