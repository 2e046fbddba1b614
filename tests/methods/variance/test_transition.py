"""The records of the phase transition: right numbers, plain JSON, no trace in the training they watch."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import load
from leanbayes.errors import ConfigError, DataError
from leanbayes.methods.variance.transition import (
    EDGES,
    THRESHOLD,
    Transition,
    accuracies,
    histogram,
    log_alphas,
)
from leanbayes.methods.variance.zero_means import zero_means_

DIGITS = load("digits")
TRAIN = tuple(t[:400] for t in DIGITS.train.tensors)
TEST = tuple(t[:200] for t in DIGITS.test.tensors)


def network(log_alpha: float = 3.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Softplus(), nn.Linear(16, 10))
    lb.bayesianize_(model, {"1": lb.Variance(log_alpha=log_alpha)})
    return model


def fit(model: nn.Module, watch: Transition | None = None, **options):
    watching = [] if watch is None else [watch]
    return lb.fit(model, TRAIN, lr=1e-2, batch_size=50, progress=False, callbacks=watching, **{"epochs": 4, **options})


def test_rows_are_plain_json_and_watching_changes_nothing() -> None:
    alone, watched = network(), network()
    fit(alone, recalibrate=False)
    watch = Transition(TEST, every=2, samples=3, kappa=tuple(t[:40] for t in TRAIN), options={"num_data": 400})
    history = fit(watched, watch, recalibrate=False)  # statistics stay those of the last epoch, which are recorded
    for name, value in alone.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name
    assert json.loads(json.dumps(watch.to_dict())) == watch.to_dict()
    assert [row["epoch"] for row in watch.rows] == [2, 4]
    assert [row["step"] for row in watch.rows] == [16, 32]
    last = watch.rows[-1]
    assert (
        last["log_alpha"] == log_alphas(watched) == {"1": pytest.approx(watched[1].posteriors.weight.log_alpha.item())}
    )
    assert history["deterministic"] == [None, watch.rows[0]["deterministic"], None, last["deterministic"]]
    # against the library's own evaluation of the same network
    for name, options in (("deterministic", {"mean_only": True}), ("ensemble", {"samples": 3})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lb.LeanBayesWarning)  # that the means of such a layer say little
            said = lb.predict(watched, TEST[0], **options)
        assert last[name] == pytest.approx(float((said.labels == TEST[1]).float().mean()))
    kept = last["kappa"]["1.weight"]
    assert sum(kept["counts"]) == kept["total"] == 16 * 64


def test_the_last_epoch_is_recorded_whatever_the_interval() -> None:
    watch = Transition(TEST, every=3, samples=1)
    fit(network(), watch)
    assert [row["epoch"] for row in watch.rows] == [3, 4]
    assert "kappa" not in watch.rows[0]


def test_a_run_that_was_stopped_keeps_its_records(tmp_path) -> None:
    whole, resumed = Transition(TEST, samples=2), Transition(TEST, samples=2)
    fit(network(), whole)

    class Stop(lb.Callback):
        def before_step(self, state) -> None:
            if state.step == 13:
                raise KeyboardInterrupt

    options = {"lr": 1e-2, "batch_size": 50, "progress": False, "epochs": 4, "resume": True}
    options["checkpoint"] = tmp_path / "run.ckpt"
    with pytest.raises(KeyboardInterrupt):
        lb.fit(network(), TRAIN, callbacks=[resumed, Stop()], **options)
    assert len(resumed.rows) == 1
    again = Transition(TEST, samples=2)
    lb.fit(network(), TRAIN, callbacks=[again, type("Stop", (lb.Callback,), {})()], **options)
    assert again.rows == whole.rows


def test_one_sample_is_the_average_of_the_ensembles_members() -> None:
    model = network()
    fit(model)
    found = accuracies(model, TEST, samples=5, seed=7)
    said = lb.predict(model, TEST[0], samples=5, seed=7, keep_samples=True)
    members = [float((one.argmax(1) == TEST[1]).float().mean()) for one in said.samples]
    assert found["stochastic"] == pytest.approx(sum(members) / 5)
    assert found["ensemble"] == pytest.approx(float((said.labels == TEST[1]).float().mean()))
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*TEST), 64)
    assert accuracies(model, batches, samples=5, seed=7) == pytest.approx(found)


def test_a_model_without_means_has_no_deterministic_accuracy() -> None:
    model = network()
    fit(model, epochs=1)
    swapped = copy.deepcopy(model)
    zero_means_(swapped)
    found = accuracies(swapped, TEST, samples=2)
    assert found["deterministic"] is None
    assert 0 <= found["ensemble"] <= 1
    assert log_alphas(swapped) == {}
    watch = Transition(TEST, samples=1)
    fit(swapped, watch, epochs=1)
    assert watch.rows[0]["deterministic"] is None


def test_histogram_counts_every_weight_once() -> None:
    values = 10 ** torch.linspace(-30, 20, 1001, dtype=torch.double)
    values[:100] = 0.0
    found = histogram(values)
    assert found["total"] == sum(found["counts"]) == 1001
    assert found["above"] == int((values > THRESHOLD).sum())
    edges = torch.tensor(EDGES, dtype=torch.double)
    logs = values.clamp_min(1e-25).log10()
    inside = (logs >= edges[40] + 0.01) & (logs < edges[41] - 0.01)
    assert abs(found["counts"][40] - int(inside.sum())) <= 1
    assert found["counts"][0] >= 100


def test_refusals() -> None:
    for bad in ({"every": 0}, {"samples": 0}, {"threshold": 0.0}, {"threshold": "high"}):
        with pytest.raises(ConfigError):
            Transition(TEST, **bad)
    with pytest.raises(DataError, match="a label a datum"):
        fit(network(), Transition([TEST[0]]), epochs=1)
    with pytest.raises(DataError, match="at least one datum"):
        accuracies(network(), [])
