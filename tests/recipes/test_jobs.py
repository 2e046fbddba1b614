"""Pieces that are run once, kept at once, and shared by processes."""

import json
import math
import subprocess
import sys
import time

import pytest

from leanbayes.errors import DataError
from leanbayes.recipes import jobs as jobs_module
from leanbayes.recipes.jobs import Jobs


def test_pieces_are_kept_by_all_that_they_depend_on(tmp_path):
    jobs = Jobs(tmp_path)
    assert jobs({"lr": 0.1}, lambda: {"nll": math.inf}) == {"nll": math.inf}
    assert jobs({"lr": 0.2}, lambda: {"nll": 2}) == {"nll": 2.0}
    assert jobs({"lr": 0.1}, lambda: pytest.fail("run twice")) == {"nll": math.inf}
    for path in tmp_path.iterdir():
        assert "Infinity" not in path.read_text()


def test_curves_are_read_back_as_they_were(tmp_path):
    points = [{"edge": 0.5, "share": 0.25, "name": "a"}, {"edge": 1.0, "share": math.nan, "name": "b"}]
    first = Jobs(tmp_path)({"seed": 0}, lambda: {"nll": 1.0, "bins": points})
    again = Jobs(tmp_path)({"seed": 0}, lambda: pytest.fail("run twice"))
    assert list(first) == list(again) == ["nll", "bins"]
    assert again["bins"][0] == points[0]
    assert math.isnan(again["bins"][1]["share"])
    assert json.loads(next(tmp_path.iterdir()).read_text())["curves"]["bins"][1]["share"] == "nan"


def test_time_and_machine_are_recorded_by_piece(tmp_path):
    jobs = Jobs(tmp_path)
    assert jobs.seconds_of({"seed": 0}) is None
    for seed in range(2):
        jobs({"seed": seed}, lambda: {"nll": 1.0})
    pieces = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert {piece["key"]["seed"] for piece in pieces} == {0, 1}
    assert all(piece["finished"].endswith("+00:00") and piece["seconds"] >= 0 for piece in pieces)
    assert jobs.machines == [pieces[0]["machine"]] == [jobs_module.machine()]
    assert {"processor", "cores", "threads", "torch"} <= set(jobs.machines[0])
    assert jobs.seconds_of({"seed": 0}) == next(p["seconds"] for p in pieces if p["key"]["seed"] == 0)


@pytest.mark.skipif(jobs_module.fcntl is None, reason="no file locks on this platform")
def test_a_piece_that_another_process_runs_is_waited_for(tmp_path):
    code = (
        "import time; from pathlib import Path; from leanbayes.recipes.jobs import Jobs\n"
        f"Jobs(Path({str(tmp_path)!r}))({{'seed': 0}}, lambda: time.sleep(1) or {{'nll': 1.0}})"
    )
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not list(tmp_path.glob("*.lock")):
            assert other.poll() is None
            time.sleep(0.01)
        told = []
        assert Jobs(tmp_path, told.append)({"seed": 0}, lambda: pytest.fail("run twice")) == {"nll": 1.0}
    finally:
        other.wait()
    assert told[0].endswith("waiting for another process")
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_piece_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(ZeroDivisionError):
        Jobs(tmp_path)({"seed": 0}, lambda: {"nll": 1 / 0})
    assert list(tmp_path.iterdir()) == []


def test_the_time_of_earlier_runs_counts(tmp_path, monkeypatch):
    now = iter([0.0, 5.0])
    monkeypatch.setattr(jobs_module.time, "process_time", lambda: next(now))
    first, second = Jobs(tmp_path), Jobs(tmp_path)
    first({"seed": 0}, lambda: {"nll": 1.0})
    second({"seed": 0}, lambda: {"nll": 1.0})
    assert first.seconds == second.seconds == 5.0


def test_the_time_of_a_piece_inside_another_counts_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(jobs_module.time, "process_time", lambda: now[0])

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
