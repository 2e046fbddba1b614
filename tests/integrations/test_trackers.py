"""Trackers: every number of the history arrives, by step; one that fails does not end training."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError, LeanBayesError, LeanBayesWarning

from ..test_foreign_models import package

DATA = torch.randn(20, 3), torch.randint(2, (20,))


def train(**options):
    torch.manual_seed(0)
    return lb.fit(nn.Linear(3, 2), DATA, epochs=2, batch_size=5, progress=False, **options)


class Notes:
    """A tracker that writes down what it is told."""

    def __init__(self, failing=None):
        self.calls, self.failing = [], failing

    def _note(self, name, *values):
        self.calls.append((name, *values))
        if name == self.failing:
            raise OSError("no route to host")

    def start(self, step):
        self._note("start", step)

    def log(self, values, step):
        self._note("log", values, step)

    def close(self):
        self._note("close")


def test_it_is_told_the_numbers_of_the_history():
    notes = Notes()
    history = train(trackers=[notes])
    (first, second) = [call for call in notes.calls if call[0] == "log"]
    assert notes.calls == [("start", 0), first, second, ("close",)]
    assert (first[2], second[2]) == (4, 8)
    assert second[1] == {k: v for k, v in history.last.items() if isinstance(v, float)}
    assert {"loss", "nll", "kl", "lr"} <= second[1].keys()


def test_a_run_that_is_continued_says_where(tmp_path):
    options = {"checkpoint": tmp_path / "run.ckpt"}
    lb.fit(nn.Linear(3, 2), DATA, epochs=1, batch_size=5, progress=False, **options)
    notes = Notes()
    train(trackers=[notes], resume=True, **options)
    assert notes.calls[0] == ("start", 4)
    assert len(notes.calls) == 3


def test_one_that_fails_meanwhile_leaves_training_and_the_others_alone():
    failing, notes = Notes("log"), Notes()
    with pytest.warns(LeanBayesWarning, match="Notes failed .no route to host.") as warned:
        history = train(trackers=[failing, notes])
    assert len(warned) == 1
    assert len(history) == 2
    assert [call[0] for call in failing.calls] == ["start", "log", "close"]
    assert [call[0] for call in notes.calls] == ["start", "log", "log", "close"]


def test_one_that_cannot_start_ends_fit_and_is_closed():
    first, failing = Notes(), Notes("start")
    with pytest.raises(OSError, match="no route"):
        train(trackers=[first, failing])
    assert [call[0] for call in first.calls] == ["start", "close"]


@pytest.mark.parametrize("wrong", [[3], Notes(), [Notes], 3, "notes"])
def test_what_is_no_tracker_is_refused(wrong):
    with pytest.raises(ConfigError, match="trackers"):
        train(trackers=wrong)


@pytest.mark.extra
def test_mlflow_keeps_every_number(tmp_path, monkeypatch):
    mlflow = package("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its newer versions ask for a database
    uri = (tmp_path / "runs").as_uri()
    tracker = lb.MLflowTracker("a", uri=uri)
    history = train(trackers=[tracker])
    client = mlflow.MlflowClient(uri)
    kept = [(m.step, m.value) for m in client.get_metric_history(tracker.run_id, "nll")]
    assert kept == [(row["step"], row["nll"]) for row in history]
    assert client.get_run(tracker.run_id).info.status == "FINISHED"
    again = lb.MLflowTracker("a", uri=uri, run_id=tracker.run_id)
    train(trackers=[again])
    assert len(client.get_metric_history(tracker.run_id, "nll")) == 4


@pytest.mark.extra
def test_a_store_that_does_not_answer_is_a_clear_error(monkeypatch):
    package("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(LeanBayesError, match="a store that answers at 'http:"):
        train(trackers=[lb.MLflowTracker(uri="http://127.0.0.1:9")])


@pytest.mark.extra
def test_wandb_writes_a_run_without_a_server(tmp_path):
    package("wandb")
    tracker = lb.WandbTracker("a", folder=tmp_path)
    train(trackers=[tracker])
    (run,) = tmp_path.glob("wandb/offline-run-*")
    assert any(b"nll" in file.read_bytes() for file in run.glob("*.wandb"))
    with pytest.raises(ConfigError, match="mode"):
        lb.WandbTracker(mode="shared")
