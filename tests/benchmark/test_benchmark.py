"""Methods timed in turns beside the plain network; the model that is given is not touched."""

import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.benchmark import run
from leanbayes.cli import main
from leanbayes.errors import ConfigError
from leanbayes.timing import ratio

QUICK = {"seconds": 1e-3, "samples": 2, "progress": False}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_every_method_has_times_and_the_model_stays_as_it_is():
    model, x = network(), torch.randn(16, 4)
    before, mode = {k: v.clone() for k, v in model.state_dict().items()}, model.training
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    found = lb.benchmark(model, x, threads=1, **QUICK)
    assert [row.name for row in found.rows] == ["plain", *(type(method).__name__ for method in run.METHODS)]
    plain, *others = found.rows
    assert (plain.step.low, plain.step.median, plain.step.high) == (1, 1, 1)
    for row in others:
        assert not row.note
        for ratio_ in (row.step, row.batch, row.single):
            assert 0 < ratio_.low <= ratio_.median <= ratio_.high
    assert next(row.parameters for row in others if row.name == "MeanField") > 1.8
    assert model.training == mode
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert json.loads(json.dumps(found.to_dict()))["settings"]["data"] == 16
    assert "MeanField" in str(found)


def test_what_cannot_be_converted_says_so_and_what_takes_longer_is_seen(monkeypatch):
    slow, waits = network(), []
    monkeypatch.setattr(run, "predict", lambda *args, **options: waits.append(sum(range(300_000))))
    found = lb.benchmark(slow, torch.randn(4, 4), methods=[lb.Nested(), lb.MeanField()], **QUICK)
    assert waits
    assert found.rows[2].batch.median > 2  # the sum takes milliseconds, a pass a tenth of one
    found = lb.benchmark(nn.BatchNorm1d(4), torch.randn(4, 4), methods=[lb.MeanField()], **QUICK)
    assert found.rows[1].note
    assert found.rows[1].step is None


def test_two_settings_of_a_method_are_told_apart():
    found = lb.benchmark(network(), torch.randn(4, 4), methods=[lb.Dropout(0.1), lb.Dropout(0.2)], **QUICK)
    assert len({row.name for row in found.rows}) == 3


def test_the_power_that_time_grows_with(monkeypatch):
    clock = iter(range(10**9))
    times = {2: 1.0, 4: 2.0, 8: 4.0}
    seen = []

    def timed(work, seconds):
        next(clock)
        return {"own": [times[seen[-1]]] * 5}

    def spy(models, plain, inputs, *rest):
        seen.append(len(inputs))
        return {name: {"own": lambda: None} for name in run.MEASURES}

    monkeypatch.setattr(run, "_timed", timed)
    monkeypatch.setattr(run, "_work", spy)
    found = lb.scaling(network(), torch.randn(8, 4), lb.MeanField(), "batch", (2, 4, 8), progress=False)
    assert seen == [2, 4, 8]
    assert found.slopes == pytest.approx({"step": 1.0, "batch": 1.0, "single": 1.0})
    assert "power" in str(found)
    assert found.to_dict()["slopes"]["step"] == pytest.approx(1.0)


@pytest.mark.parametrize("vary", ["samples", "threads", "density"])
def test_what_may_vary(vary):
    method = lb.SparseSubspace(thinning=0.0)
    values = (0.2, 0.5) if vary == "density" else (1, 2)
    found = lb.scaling(network(), torch.randn(8, 4), method, vary, values, **QUICK)
    assert found.values == values
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.seconds.values())


def test_bad_arguments_are_refused_before_anything_is_timed(monkeypatch):
    monkeypatch.setattr(run, "in_turns", None)
    model, x = network(), torch.randn(8, 4)
    for options in ({"methods": [3]}, {"seconds": 0}, {"samples": 0}, {"threads": 0}, {"progress": 2}):
        with pytest.raises(ConfigError):
            lb.benchmark(model, x, **options)
    with pytest.raises(ConfigError, match="with parameters"):
        lb.benchmark(nn.ReLU(), x)
    for vary, values in (
        ("rate", (1, 2)),
        ("batch", (1, 9)),
        ("samples", (2, 2)),
        ("samples", (1.5, 2)),
        ("batch", ()),
    ):
        with pytest.raises(ConfigError):
            lb.scaling(model, x, lb.MeanField(), vary, values, progress=False)


def test_an_interval_of_a_median_covers_it():
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(400):
        values = torch.rand(15, generator=generator).tolist()
        found = ratio(values, [1.0] * 15)
        hits += found.low <= 0.5 <= found.high
    assert hits >= 0.95 * 400 - 3 * (400 * 0.95 * 0.05) ** 0.5
    assert (ratio([1.0, 3.0], [1.0, 1.0]).low, ratio([1.0, 3.0], [1.0, 1.0]).high) == (1.0, 3.0)
    many = ratio([float(v) for v in range(101)], [1.0] * 101)
    assert many.median == 50
    assert 35 < many.low < 45  # of 101 sorted values the 41st, about two standard deviations of the count below


def test_the_command(tmp_path, capsys):
    out = tmp_path / "bench.svg"
    options = ["--seconds", "0.01", "--samples", "2", "--batch", "8", "--json", "--out", str(out)]
    assert main(["bench", "dropout", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["plain", "Dropout"]
    assert out.read_text().startswith("<svg")
    assert main(["bench", "dropout", "--vary", "samples", "--values", "1", "2", *options]) == 0
    assert json.loads(capsys.readouterr().out)["vary"] == "samples"
    assert "power" in out.read_text()
    assert main(["bench", "--vary", "samples", "--json"]) == 2
    assert "values" in json.loads(capsys.readouterr().out)["error"]["message"]
