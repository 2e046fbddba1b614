"""`evaluate` end to end: small networks, each task, whatever holds the data."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.convert import record
from leanbayes.errors import EvaluationError, LeanBayesError, LeanBayesWarning
from leanbayes.evaluation import (
    Corruptions,
    Evaluation,
    accuracy,
    calibrate_,
    compare,
    ece,
    nll,
    stages as asking,
)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (200,), generator=generator)
    x = torch.randn(200, 4, generator=generator) + 2 * torch.nn.functional.one_hot(y, 4)
    return x, y


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.MeanField())
    return model


@pytest.fixture
def skilled():
    """One that has learned something: the logits are three of the inputs, and it is too sure of them."""
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.copy_(4 * torch.eye(3, 4))
        model[0].bias.zero_()
    lb.bayesianize_(model, lb.MeanField(std=0.1))
    return model


def quiet(model, loader, **options):
    return lb.evaluate(model, loader, **({"samples": 4, "progress": False} | options))


def test_the_numbers_are_those_of_predict(classifier, data):
    x, y = data
    loader = DataLoader(TensorDataset(x, y), batch_size=64)
    result = quiet(classifier, loader, task="classification", seed=3, name="mine")
    probs = lb.predict(classifier, x, samples=4, seed=3, task="classification").probs
    assert result["accuracy"] == accuracy(probs, y)
    assert result["nll"] == pytest.approx(nll(probs, y), abs=1e-5)
    assert result["ece"] == pytest.approx(ece(probs, y), abs=1e-5)
    assert (result.name, result.task, result.count) == ("mine", "classification", 200)
    assert result.settings["samples"] == 4
    assert result.settings["seed"] == 3
    assert result.cost["parameters"] > 0
    assert result.cost["predict_seconds"] > 0


def test_predict_is_called_once_per_batch(classifier, data, monkeypatch):
    real, calls = asking.predict, []
    monkeypatch.setattr(asking, "predict", lambda *a, **k: (calls.append(len(a[1])), real(*a, **k))[1])
    monkeypatch.setattr(asking, "latency", lambda answer, inputs: ({}, {}))
    quiet(classifier, DataLoader(TensorDataset(*data), batch_size=64), task="classification")
    assert calls == [64, 64, 64, 8]


@pytest.mark.parametrize("form", ["pair", "dataset", "list", "generator", "mappings"])
def test_whatever_holds_the_data(data, form):
    x, y = data
    halves = [(x[:150], y[:150]), (x[150:], y[150:])]
    forms = {
        "pair": (x, y),
        "dataset": TensorDataset(x, y),
        "list": halves,
        "generator": (half for half in halves),
        "mappings": [{"input": a, "labels": b} for a, b in halves],
    }
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3)) if form != "mappings" else nn.Linear(4, 3)
    result = quiet(model, forms[form], task="classification")
    assert result.count == 200
    assert result.settings["engine"] == "deterministic"


def test_out_of_domain(classifier, data):
    far = torch.randn(60, 4) * 20
    result = quiet(classifier, data, task="classification", ood={"far": [far[:30], far[30:]], "a.b": (far, far)})
    sets = {key.rsplit(".", 2)[0] for key in result.metrics if key.startswith("ood.")}
    assert sets == {"ood.far", "ood.a.b"}
    assert result["ood.far.entropy.auroc"] == result["ood.a.b.entropy.auroc"]
    assert 0 <= result["ood.far.mutual_information.fpr95"] <= 1
    assert result.settings["ood"] == {"far": 60, "a.b": 60}
    plain = quiet(classifier, data, task="classification", ood={"far": far}, mean_only=True)
    assert not [key for key in plain.metrics if "mutual_information" in key]


def test_regression(data):
    x, _ = data
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1))
    lb.bayesianize_(model, lb.MeanField())
    targets = x.sum(1)
    result = quiet(model, (x, targets), task="regression", levels=(0.5, 0.9), ood={"far": 30 * x})
    pred = lb.predict(model, x, samples=4, task="regression")
    assert result["rmse"] == pytest.approx(float((pred.mean[:, 0] - targets).square().mean().sqrt()), abs=1e-5)
    assert result["log_density"] == pytest.approx(float(pred.log_prob(targets).mean()), abs=1e-4)
    low, high = pred.interval(0.9)
    inside = ((low[:, 0] <= targets) & (targets <= high[:, 0])).double().mean()
    assert result["coverage.0.9"] == pytest.approx(float(inside), abs=0.011)
    assert result["ood.far.variance.auroc"] > 0.5
    with pytest.raises(LeanBayesError, match=r"\(200, 2\)|\(200,"):
        quiet(model, (x, x[:, :2]), task="regression")


def test_regression_says_how_wide_and_how_honest(data):
    x, _ = data
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1))
    lb.bayesianize_(model, lb.MeanField())
    result = quiet(model, (x, x.sum(1)), task="regression")
    pred = lb.predict(model, x, samples=4, task="regression")
    assert result["sharpness"] == pytest.approx(float(pred.variance.mean().sqrt()), abs=1e-4)
    assert result["crps"] == pytest.approx(float(pred.crps(x.sum(1)).mean()), abs=1e-4)
    assert sum(result.curves["pit"]["count"]) == 200
    low, high = result.interval("rmse")
    assert low < result["rmse"] < high


def test_the_time_of_a_prediction_is_measured(classifier, data):
    result = quiet(classifier, data, task="classification")
    assert result.cost["latency_one"] > 0
    assert result.cost["latency_batch"] > 0
    assert result.settings["latency"].keys() == {"batch", "threads"}


def test_a_slow_network_is_asked_few_times_and_about_as_many_data_as_a_fast_one():
    import time

    from leanbayes.evaluation import latency

    asked = []

    def slow(inputs):
        asked.append(len(inputs))
        time.sleep(0.6 if len(inputs) == 1 else 1.1)

    times, how = latency.latency(slow, torch.zeros(100, 2))
    assert times["latency_one"] == pytest.approx(0.6, abs=0.3)
    assert how["batch"] == 64
    assert asked == [1, 64]


def test_temperature_is_that_of_calibrate_and_leaves_the_model_alone(skilled, data):
    x, y = data
    held_out = (x[:80], y[:80])
    result = quiet(skilled, (x[80:], y[80:]), task="classification", temperature=held_out)
    found = record.get(skilled)
    assert found is None or found.likelihood is None
    assert result["temperature"] > 1
    found = calibrate_(skilled, held_out, task="classification", samples=4, progress=False)
    assert result["temperature"] == found
    again = quiet(skilled, (x[80:], y[80:]))
    assert again["nll"] == result["scaled.nll"]
    assert again["ece"] == result["scaled.ece"]


def test_answering_only_when_sure(skilled, data):
    x, y = data
    result = quiet(skilled, data, task="classification", selective=(0.5, 0.9))
    pred = lb.predict(skilled, x, samples=4, task="classification")
    sure = pred.probs.amax(1) >= result["selective.threshold.0.9"] - 1e-6
    assert float(sure.double().mean()) == pytest.approx(result["selective.coverage.0.9"])
    assert float((pred.labels == y)[sure].double().mean()) >= 0.9
    assert result.interval("selective.coverage.0.9") is not None


def test_what_several_people_said(skilled, data):
    x, y = data
    votes = 3 * nn.functional.one_hot(y, 3) + nn.functional.one_hot(y.roll(1), 3)
    result = quiet(skilled, (x, votes), task="classification")
    hard = quiet(skilled, data, task="classification")
    assert result["accuracy"] == hard["accuracy"]
    shares = votes / votes.sum(1, keepdim=True)
    probs = lb.predict(skilled, x, samples=4, task="classification").probs
    assert result["human.cross_entropy"] == pytest.approx(float(-(shares * probs.log()).sum(1).mean()), abs=1e-4)
    assert "Against human labels" in str(result)


def test_replicates_are_the_same_whatever_the_seed_of_the_samples(classifier, data):
    a, b = (quiet(classifier, data, task="classification", seed=seed, mean_only=True) for seed in (1, 2))
    assert a.replicates["accuracy"] == b.replicates["accuracy"]
    assert quiet(classifier, data, task="classification", replicates=0).replicates == {}


def test_the_fingerprint_of_the_data(classifier, data):
    x, y = data
    a = quiet(classifier, data, task="classification").settings["data"]
    b = quiet(classifier, DataLoader(TensorDataset(x, y), batch_size=50), task="classification").settings["data"]
    assert a == b  # not a matter of the batch size
    assert a.startswith("200:")
    assert quiet(classifier, (x + 1, y), task="classification").settings["data"] != a
    assert quiet(classifier, (x[:-1], y[:-1]), task="classification").settings["data"] != a


def test_segmentation_takes_its_ignored_label_from_the_task():
    torch.manual_seed(0)
    model = nn.Conv2d(1, 3, 1)
    x, y = torch.randn(4, 1, 5, 5), torch.randint(3, (4, 5, 5))
    y[:, 0] = -100
    result = quiet(nn.Sequential(model), (x, y), task="segmentation", ood={"far": 9 * x})
    labels = model(x).argmax(1)
    assert result["accuracy"] == pytest.approx(float((labels == y)[:, 1:].double().mean()))
    assert result.count == 4


def test_bad_calls(classifier, data):
    x, y = data
    task = {"task": "classification"}
    with pytest.raises(EvaluationError, match="loader: expected at least one datum"):
        quiet(classifier, [], **task)
    with pytest.raises(EvaluationError, match="without targets"):
        quiet(classifier, [x], **task)
    with pytest.raises(EvaluationError, match="by name"):
        quiet(classifier, data, ood=[x], **task)
    with pytest.raises(EvaluationError, match=r"ood\['far'\]: expected at least one"):
        quiet(classifier, data, ood={"far": []}, **task)
    with pytest.raises(EvaluationError, match="DataLoader"):
        quiet(classifier, 3, **task)
    with pytest.raises(EvaluationError, match=r"\(200, 4\) and \(100,\)"):
        quiet(classifier, (x, y[:100]), **task)
    with pytest.raises(EvaluationError, match=r"targets\[70\].*0\.\.2"):
        quiet(classifier, [(x[:64], y[:64]), (x[64:], torch.where(torch.arange(136) == 6, 9, y[64:]))], **task)
    with pytest.raises(LeanBayesError, match="task"):
        quiet(classifier, data)
    with pytest.raises(EvaluationError, match="classification, segmentation or regression"):
        quiet(classifier, data, task=lambda outputs, targets: outputs.sum(1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"corruptions": True}, r"images \(N, C, H, W\).*received \(200, 4\)"),
        ({"attack": True}, r"images \(N, C, H, W\)"),
        ({"corruptions": "fog"}, "expected Corruptions.*received str"),
        ({"attack": 3}, "expected Attack.*received int"),
        ({"pixels": (0.5, 0.2)}, "received tuple"),
        ({"reference": "old.json"}, "expected an Evaluation, received str"),
        ({"reference": Evaluation("a", "classification", 1, {})}, "corruptions= beside it"),
        ({"selective": 0.9}, "received 0.9"),
        ({"selective": (90,)}, "above 0 and of at most 1"),
        ({"replicates": -1}, "at least 0"),
        ({"replicates": 2.5}, "at least 0"),
        ({"bins": 0}, "bins"),
    ],
)
def test_nonsense_is_refused_before_the_first_prediction(classifier, data, options, said, monkeypatch):
    monkeypatch.setattr(asking, "evaluate_test_data", pytest.fail)
    with pytest.raises(EvaluationError, match=said):
        quiet(classifier, data, task="classification", **options)


def test_questions_about_images_need_pixels_classes_and_data_that_last():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images, labels = torch.rand(20, 1, 8, 8), torch.randint(10, (20,))
    few = {"corruptions": Corruptions(names=("contrast",), severities=(1,))}
    result = quiet(model, (images, labels), task="classification", **few)
    assert result.curves["corruption"][0]["count"] == 20
    with pytest.raises(EvaluationError, match=r"pixels=Pixels\(mean"):
        quiet(model, (images * 4 - 2, labels), task="classification", **few)
    with pytest.raises(EvaluationError, match="gone through again, as corruptions= needs"):
        quiet(model, iter([(images, labels)]), task="classification", **few)
    with pytest.raises(EvaluationError, match="expected a task of classification, received regression"):
        quiet(model, (images, torch.randn(20, 10)), task="regression", **few)
    reference = quiet(model, (images, labels), task="classification", **few)
    other = {"corruptions": Corruptions(names=("fog",), severities=(1,)), "reference": reference}
    with pytest.raises(EvaluationError, match="no cell"):
        quiet(model, (images, labels), task="classification", **other)
    with pytest.warns(LeanBayesWarning, match="rmce is undefined"):
        assert quiet(model, (images, labels), task="classification", **few, reference=reference)["corruption.mce"] == 1


def test_nan_outputs_are_named(data):
    x, y = data
    x = x.clone()
    x[77] = math.nan
    with pytest.raises(EvaluationError, match=r"probs\[77\]"):
        quiet(nn.Sequential(nn.Linear(4, 3)), (x, y), task="classification")


def test_results_survive_json(classifier, data, tmp_path):
    rows = [{"epoch": 0, "loss": 1.0, "seconds": 0.5}, {"epoch": 1, "loss": math.nan, "seconds": 0.25}]
    result = quiet(classifier, data, task="classification", history=iter(rows), ood={"far": data[0] * 9})
    assert result.cost["train_seconds"] == 0.75
    path = result.save_json(tmp_path / "result.json")
    again = Evaluation.load_json(path)
    assert again.metrics == result.metrics
    assert again.curves == result.curves
    assert again.history[1]["loss"] is None  # JSON has no NaN
    assert json.loads(path.read_text())["kind"] == "Evaluation"
    both = compare({"a": result, "b": again})
    assert [e.name for e in type(both).load_json(both.save_json(tmp_path / "both.json"))] == ["a", "b"]
