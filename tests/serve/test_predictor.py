"""Answers are those of `predict`, alone and in a batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.errors import PredictionError
from leanbayes.serve.answers import judged
from leanbayes.serve.options import Ask, Thresholds
from leanbayes.serve.predictor import Exported, Predictor, TorchModel
from tests.serve.helpers import floats, image_predictor, images, number_predictor, package

METHODS = [
    lb.MeanField(std=0.3), lb.Dropout(0.3), lb.VariationalDropout(), lb.Variance(), lb.Ensemble(3), lb.Patch(),
    lb.SparseSubspace(), lb.Nested(groups=4, base_groups=1),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_batch_answers_as_predict_does_one_by_one(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    lb.bayesianize_(model, method)
    predictor = image_predictor(model)
    assert predictor.card.together
    parts = list(torch.randn(7, 1, 6, 6).split([1, 2, 3, 1]))
    found = predictor(Ask(6, seed=5), parts)
    assert [len(answers) for answers in found] == [1, 2, 3, 1]
    for part, answers in zip(parts, found, strict=True):
        alone = lb.predict(model, part, samples=6, seed=5, task="classification")
        for name, wanted in (("probs", alone.probs), ("entropy", alone.entropy), ("std", alone.variance.sqrt())):
            torch.testing.assert_close(torch.tensor([a[name] for a in answers]), wanted, rtol=1e-4, atol=1e-5)
        assert [a["label"] for a in answers] == [str(label) for label in alone.labels.tolist()]
        assert [a["confidence"] for a in answers] == [max(a["probs"]) for a in answers]


class WholeBatch(nn.Module):
    """A network whose answer depends on its neighbours."""

    def forward(self, x):
        return x.flatten(1)[:, :3] - x.flatten(1)[:, :3].mean(0)


class OwnDropout(nn.Module):
    """A network that draws a mask of the shape of its batch."""

    def forward(self, x):
        return F.dropout(x.flatten(1)[:, :3], 0.5, training=True)


@pytest.mark.parametrize("network", [WholeBatch, OwnDropout])
def test_a_network_that_looks_at_the_batch_is_not_batched(network):
    assert not Predictor(TorchModel(network(), "classification"), floats, (1, 6, 6)).card.together


def test_widths_are_chosen_by_a_request_and_do_not_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
    lb.bayesianize_(model, lb.Nested(groups=4, base_groups=1))
    x = torch.randn(2, 1, 6, 6)
    before = lb.predict(model, x, samples=4, task="classification").probs
    lb.set_width_(model, 0.5)
    half = lb.predict(model, x, samples=4, task="classification").probs
    lb.set_width_(model, 1.0)
    predictor = image_predictor(model)
    assert predictor.card.has_width
    said = [predictor(Ask(4, 0, width), [x])[0] for width in (None, 0.5, None)]
    found = [torch.tensor([a["probs"] for a in answers]) for answers in said]
    assert (before - half).abs().max() > 1e-3
    for probs, wanted in zip(found, (before, half, before), strict=True):
        torch.testing.assert_close(probs, wanted)


def test_conformal_sets_are_told_by_the_names_of_classes():
    model, x = images(), torch.randn(60, 1, 6, 6)
    y = lb.predict(model, x, samples=4, task="classification").labels
    lb.fit(model, (x, y), epochs=1, progress=False)
    lb.conformalize_(model, (x, y), coverage=0.8, samples=4, progress=False)
    predictor = Predictor(TorchModel(model), floats, (1, 6, 6), classes=("a", "b", "c", "d"))
    assert (predictor.card.coverage, predictor.card.conformal_samples) == (0.8, 4)
    found = predictor(Ask(4, 0), [x[:5]])[0]
    wanted = lb.predict(model, x[:5], samples=4).prediction_sets
    assert [a["set"] for a in found] == [["abcd"[at] for at in row.nonzero().flatten().tolist()] for row in wanted]


def test_numbers_come_in_units_of_the_target():
    predictor = number_predictor(scale=(100.0, 10.0))
    x = torch.randn(3, 2)
    found = predictor(Ask(4, 0, draws=True), [x])[0]
    alone = lb.predict(predictor.model.model, x, samples=4, task="regression")
    low, high = alone.interval(0.95)
    torch.testing.assert_close(torch.tensor([a["mean"] for a in found]), alone.mean * 10 + 100)
    torch.testing.assert_close(torch.tensor([a["std"] for a in found]), alone.variance.sqrt() * 10)
    torch.testing.assert_close(torch.tensor([a["interval"] for a in found]), torch.stack([low, high], 1) * 10 + 100)
    torch.testing.assert_close(torch.tensor([a["draws"] for a in found]), alone.samples.transpose(0, 1) * 10 + 100)


def test_a_model_that_does_not_take_the_shape_is_refused():
    with pytest.raises(PredictionError, match=r"expected a model for data of shape \(1, 5, 5\)"):
        Predictor(TorchModel(images(), "classification"), floats, (1, 5, 5))
    with pytest.raises(PredictionError, match="received one of segmentation"):
        Predictor(TorchModel(nn.Conv2d(1, 2, 1), "segmentation"), floats, (1, 5, 5))


@pytest.mark.parametrize(
    ("thresholds", "reason"),
    [
        (Thresholds(min_confidence=0.6), ""),
        (Thresholds(min_confidence=0.61), "confidence 0.6 is below 0.61"),
        (Thresholds(max_entropy=0.9), ""),
        (Thresholds(max_entropy=0.8), "entropy 0.9 is above 0.8"),
        (Thresholds(max_information=0.1), "mutual_information 0.2 is above 0.1"),
        (Thresholds(max_set=2), ""),
        (Thresholds(max_set=1), "the prediction set has 2 classes, 1 may be in it"),
    ],
)
def test_it_abstains_by_the_threshold_that_was_chosen(thresholds, reason):
    answer = {"label": "cat", "confidence": 0.6, "entropy": 0.9, "mutual_information": 0.2, "set": ["cat", "dog"]}
    found = judged(answer, thresholds)
    assert found["reasons"] == ([reason] if reason else [])
    assert found["abstained"] == bool(reason)
    assert found["label"] == (None if reason else "cat")


def test_an_empty_set_and_an_infinite_deviation_are_no_answers():
    assert judged({"label": "cat", "set": []}, Thresholds(max_set=1))["abstained"]
    assert judged({"mean": 1.0, "std": None}, Thresholds(max_std=5))["mean"] is None
    assert judged({"mean": [1.0, 2.0], "std": [0.1, 9.0]}, Thresholds(max_std=5))["reasons"] == ["std 9 is above 5"]


@pytest.mark.extra
def test_an_exported_graph_answers_as_predict_does(tmp_path):
    package("onnxscript")
    package("onnxruntime")
    model, x = images(), torch.randn(4, 1, 6, 6)
    lb.export(model, tmp_path / "model.onnx", x[:1], samples=6, seed=3, task="classification")
    predictor = Predictor(Exported(lb.read_export(tmp_path / "model.onnx")), floats, (1, 6, 6))
    assert (predictor.card.samples, predictor.card.seed, predictor.card.together) == (6, 3, True)
    found = [answer for part in predictor(Ask(), [x[:1], x[1:]]) for answer in part]
    wanted = lb.predict(model, x, samples=6, seed=3, task="classification")
    torch.testing.assert_close(torch.tensor([a["probs"] for a in found]), wanted.probs, rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.tensor([a["entropy"] for a in found]), wanted.entropy, rtol=0, atol=1e-4)
