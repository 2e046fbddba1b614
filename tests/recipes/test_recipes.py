"""Recipes: one shape for all results, pieces that are run once, a table beside the paper's."""

import json
import math

import pytest

from leanbayes.errors import ConfigError, DataError
from leanbayes.recipes import base
from leanbayes.recipes.base import Jobs, Recipe, Row, recipes, reproduce
from leanbayes.recipes.table import result_table


@pytest.fixture
def toy(monkeypatch):
    """A recipe of two rows and three seeds, and the list of pieces that were really run."""
    ran = []

    def rows(preset, jobs):
        for method, shift in (("a", 0.0), ("b", 1.0)):

            def work(shift=shift):
                ran.append(shift)
                return {"accuracy": 0.5 + shift + len(ran) / 100, "nll": math.nan if shift else 0.25}

            runs = [jobs({"method": method, "seed": seed}, work) for seed in range(3)]
            yield Row("digits", method, 0.5, runs, paper={"accuracy": 0.9} if shift else {})

    monkeypatch.setitem(base._RECIPES, "toy", Recipe("toy", "two rows", {"smoke": 3}, rows))
    return ran


def test_the_shape_of_a_result(toy):
    result = reproduce("toy")
    assert list(result) == ["recipe", "preset", "command", "version", "seeds", "seconds", "rows"]
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


def test_an_interrupted_run_goes_on(toy, tmp_path, monkeypatch):
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
    assert again["rows"] == whole["rows"]
    assert len(list((tmp_path / "deep" / "runs").iterdir())) == 6  # and no temporary file


def test_pieces_are_kept_by_all_that_they_depend_on(tmp_path):
    jobs = Jobs(tmp_path)
    assert jobs({"lr": 0.1}, lambda: {"nll": math.inf}) == {"nll": math.inf}
    assert jobs({"lr": 0.2}, lambda: {"nll": 2}) == {"nll": 2.0}
    assert jobs({"lr": 0.1}, lambda: pytest.fail("run twice")) == {"nll": math.inf}
    for path in tmp_path.iterdir():
        assert "Infinity" not in path.read_text()


def test_the_time_of_earlier_runs_counts(tmp_path, monkeypatch):
    now = iter([0.0, 5.0])
    monkeypatch.setattr(base.time, "perf_counter", lambda: next(now))
    first, second = Jobs(tmp_path), Jobs(tmp_path)
    first({"seed": 0}, lambda: {"nll": 1.0})
    second({"seed": 0}, lambda: {"nll": 1.0})
    assert first.seconds == second.seconds == 5.0


def test_the_time_of_a_piece_inside_another_counts_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(base.time, "perf_counter", lambda: now[0])

    def work(jobs, seconds, *inner):
        def run():
            now[0] += seconds
            for name in inner:
                jobs({"part": name}, work(jobs, 3.0))
            return {"nll": 1.0}

        return run

    interrupted = Jobs(tmp_path)
    interrupted({"part": "first"}, work(interrupted, 3.0))
    jobs = Jobs(tmp_path)
    jobs({"part": "outer"}, work(jobs, 1.0, "first", "second"))
    jobs({"part": "next"}, work(jobs, 1.0, "second"))
    assert jobs.seconds == now[0] == 8.0
    again = Jobs(tmp_path)
    for name in ("outer", "next"):
        again({"part": name}, lambda: pytest.fail("run twice"))
    assert again.seconds == 8.0


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seconds": 1, "metrics": {"nll": []}}', "\x00"])
def test_a_damaged_piece_is_named(tmp_path, content):
    jobs = Jobs(tmp_path)
    jobs({"seed": 0}, lambda: {"nll": 1.0})
    path = next(tmp_path.iterdir())
    path.write_text(content)
    with pytest.raises(DataError, match=path.name):
        jobs({"seed": 0}, lambda: {"nll": 1.0})


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [("baseline", "smoke", "did you mean 'baselines'"), ("zzz", "smoke", "zzz"), ("baselines", "gpu", "smoke, cpu")],
)
def test_unknown_names_are_refused(name, preset, message):
    with pytest.raises(ConfigError, match=message):
        reproduce(name, preset)


def test_baselines_smoke():
    result = reproduce("baselines", "smoke")
    json.dumps(result, allow_nan=False)
    assert len(result["rows"]) >= 5
    for row in result["rows"]:
        assert {"accuracy", "nll", "brier", "ece", "not-digits/letters AUROC", "parameters"} <= set(row["metrics"])
        assert all(m["n"] == 1 and m["std"] is None for m in row["metrics"].values())
        assert 0 <= row["metrics"]["accuracy"]["mean"] <= 1
    assert result["rows"][0]["metrics"]["accuracy"]["mean"] > 0.6
    assert all(set(r.seeds) == {"smoke", "cpu", "paper"} for name, r in recipes().items() if name != "toy")
    assert "mean-field" in result_table(result)


@pytest.mark.parametrize("kept", [True, False])
def test_a_network_is_trained_once_for_all_recipes_that_ask_for_it(tmp_path, kept):
    import torch
    from torch import nn

    import leanbayes as lb

    trained = []

    def plain():
        return nn.Sequential(nn.Linear(3, 2))

    def train(**options):
        trained.append(True)
        model = plain()
        lb.bayesianize_(model, lb.MeanField())
        return model

    first = Jobs(tmp_path / "one.smoke" if kept else None)
    second = Jobs(tmp_path / "other.smoke") if kept else first
    found = first.network({"seed": 0}, plain, train)
    before = found[0].posteriors["weight"].rho.clone()
    again = second.network({"seed": 0}, plain, train)
    assert len(trained) == 1
    assert torch.equal(again[0].posteriors["weight"].rho, before)
    with torch.no_grad():  # what one piece does to its copy is its own affair
        again[0].posteriors["weight"].rho.zero_()
    third = second.network({"seed": 0}, plain, train)
    assert torch.equal(third[0].posteriors["weight"].rho, before)
    second.network({"seed": 1}, plain, train)
    assert len(trained) == 2
