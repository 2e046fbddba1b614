"""Experiments as data: one shape for all results, pieces that can be run alone, a table beside the paper's."""

import json
import math
import subprocess
import sys

import pytest

from leanbayes.errors import ConfigError
from leanbayes.recipes import catalogue
from leanbayes.recipes.catalogue import RECIPES, Recipe, find
from leanbayes.recipes.experiment import Cell, Experiment, grid, reproduce
from leanbayes.recipes.jobs import Jobs
from leanbayes.recipes.results import Row
from leanbayes.recipes.table import result_table


@pytest.fixture
def toy(monkeypatch):
    """A recipe of two rows and three seeds, and the list of pieces that were really run."""
    ran = []

    def cells(preset):
        for method, shift in (("a", 0.0), ("b", 1.0)):

            def measure(jobs, seed, shift=shift):
                ran.append(shift)
                return {"accuracy": 0.5 + shift + len(ran) / 100, "nll": math.nan if shift else 0.25}

            paper = {"accuracy": 0.9} if shift else {}
            yield Cell("digits", method, 0.5, {"method": method}, measure, seeds=3, paper=paper)

    monkeypatch.setitem(catalogue.RECIPES, "toy", Recipe("toy", "two rows", lambda: Experiment("toy", cells)))
    return ran


def test_the_shape_of_a_result(toy):
    result = reproduce("toy")
    assert list(result) == ["recipe", "preset", "command", "version", "seeds", "seconds", "machines", "rows"]
    assert (result["recipe"], result["preset"], result["seeds"]) == ("toy", "smoke", 3)
    assert result["command"] == "leanbayes reproduce toy --preset smoke"
    assert [list(row) for row in result["rows"]] == [["dataset", "method", "setting", "metrics", "paper"]] * 2
    accuracy = result["rows"][0]["metrics"]["accuracy"]
    assert accuracy == {"mean": pytest.approx(0.52), "std": pytest.approx(0.01), "n": 3}
    assert result["rows"][1]["paper"] == {"accuracy": 0.9}
    # what diverged is neither hidden nor written as NaN, which JSON has not
    assert result["rows"][1]["metrics"]["nll"] == {"mean": None, "std": None, "n": 3}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_table_shows_ours_beside_theirs(toy):
    text = result_table(reproduce("toy"))
    assert "± 0.01 (0.9)" in text
    assert "undefined" in text
    assert "toy, preset smoke, 3 seeds" in text
    assert max(map(len, text.splitlines())) < 100


def test_curves_have_a_field_of_their_own():
    runs = [
        {"nll": 1.0, "bins": [{"edge": 0.5, "share": 0.2}, {"edge": 1.0, "share": 0.8}]},
        {"nll": 2.0, "bins": [{"edge": 1.0, "share": 0.6}]},
    ]
    row = Row("digits", "a", 1, runs).to_dict()
    assert set(row["metrics"]) == {"nll"}
    low, high = row["curves"]["bins"]
    assert low == {"edge": 0.5, "share": {"mean": 0.2, "std": None, "n": 1}}
    assert (high["edge"], high["share"]["mean"], high["share"]["n"]) == (1.0, pytest.approx(0.7), 2)
    result = {"recipe": "toy", "preset": "smoke", "seeds": 2, "seconds": 1.0, "rows": [row]}
    assert "curves in the JSON: bins" in result_table(result)


def test_a_piece_may_make_several_rows():
    def measure(jobs, seed):
        return {"rows": [{"setting": n, "nll": n + seed} for n in (1, 5)] + [{"method": "b", "nll": 0.5}]}

    cell = Cell("digits", "a", 0, {}, measure, 2, paper=lambda method, setting: {"nll": setting})
    rows = list(cell.rows([measure(None, seed) for seed in range(2)]))
    assert [(row.method, row.setting, row.paper["nll"]) for row in rows] == [("a", 1, 1), ("a", 5, 5), ("b", 0, 0)]
    assert [run["nll"] for run in rows[1].runs] == [5, 6]


def test_seeds_are_counted_named_or_none():
    assert [piece.seed for piece in Cell("d", "m", 1, {"k": 1}, seeds=2).pieces()] == [0, 1]
    assert [piece.key for piece in Cell("d", "m", 1, {"k": 1}, seeds=(3, 7)).pieces()][1] == {"k": 1, "seed": 7}
    (only,) = Cell("d", "m", 1, {"k": 1}, seeds=None).pieces()
    assert (only.key, only.label) == ({"k": 1}, "m (1) on d")
    assert [only.matches(text) for text in ("", "on d", "m*d", "x|*d", "x|y", "d*")] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    cited = Cell("d", "cited", 1, seeds=0, paper={"nll": 1.0})
    assert cited.pieces() == []
    (row,) = cited.rows([])
    assert row.to_dict()["paper"] == {"nll": 1.0}


def test_grids_have_overrides():
    cells = grid(
        data=["mnist", "cifar10"],
        method=["dense", "sparse"],
        overrides=[({"data": "cifar10"}, {"epochs": 3}), ({"data": "cifar10", "method": "sparse"}, {"epochs": 9})],
    )
    assert [cell.get("epochs") for cell in cells] == [None, None, 3, 9]
    with pytest.raises(ConfigError, match=r"expected some of data, received dat$"):
        grid(data=["mnist"], overrides=[({"dat": "mnist"}, None)])


def test_an_interrupted_run_goes_on(toy, tmp_path):
    whole = reproduce("toy")
    toy.clear()

    def stop(text):
        if len(toy) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("toy", resume=tmp_path / "deep" / "runs", tell=stop)
    assert len(toy) == 4
    told = []
    again = reproduce("toy", resume=tmp_path / "deep" / "runs", tell=told.append)
    assert len(toy) == 6
    assert sum("already done" in line for line in told) == 4
    assert told[-1] == "[6/6] b (0.5) on digits, seed 2"
    assert again["rows"] == whole["rows"]
    assert len(list((tmp_path / "deep" / "runs").iterdir())) == 6  # and no temporary file


@pytest.mark.parametrize(("pattern", "ran"), [("b (0.5)", [1.0] * 3), ("a*seed [01]", [0.0] * 2), ("nothing", [])])
def test_pieces_are_run_alone(toy, tmp_path, pattern, ran):
    experiment, jobs = find("toy").load(), Jobs(tmp_path)
    experiment.run("smoke", jobs, pattern)
    assert toy == ran
    done = [piece.label for piece in experiment.pieces("smoke") if jobs.seconds_of(piece.key) is not None]
    assert len(done) == len(ran)
    reproduce("toy", resume=tmp_path)
    assert len(toy) == 6


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [("baseline", "smoke", "did you mean 'baselines'"), ("zzz", "smoke", "zzz"), ("baselines", "gpu", "smoke, cpu")],
)
def test_unknown_names_are_refused(name, preset, message):
    with pytest.raises(ConfigError, match=message):
        reproduce(name, preset)


def test_all_are_listed_without_torch():
    code = "import sys; from leanbayes.recipes.catalogue import RECIPES; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert len(RECIPES) >= 34
    assert list(RECIPES) == sorted(RECIPES)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_preset_has_pieces_with_keys_and_names_of_their_own(name):
    experiment = find(name).load()
    assert experiment.name == name
    for preset in catalogue.PRESETS:
        pieces = experiment.pieces(preset)
        assert pieces
        assert len({piece.label for piece in pieces}) == len(pieces)
        assert len({json.dumps(piece.key, sort_keys=True, default=str) for piece in pieces}) == len(pieces)


@pytest.mark.long  # twelve trainings; the recipes of the papers have smoke tests of their own
def test_baselines_smoke():
    result = reproduce("baselines", "smoke")
    json.dumps(result, allow_nan=False)
    assert len(result["rows"]) >= 5
    for row in result["rows"]:
        assert {"accuracy", "nll", "brier", "ece", "not-digits/letters AUROC", "parameters"} <= set(row["metrics"])
        assert all(m["n"] == 1 and m["std"] is None for m in row["metrics"].values())
        assert 0 <= row["metrics"]["accuracy"]["mean"] <= 1
    assert result["rows"][0]["metrics"]["accuracy"]["mean"] > 0.6
    assert [row["method"] for row in result["rows"][-3:]] == [f"nested, width {n} %" for n in (25, 50, 100)]
    assert "mean-field" in result_table(result)
