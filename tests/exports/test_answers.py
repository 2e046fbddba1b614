"""What a graph is made from, in torch alone: the answers of `predict`, each value once, any size of batch."""

import json
import warnings
from collections import Counter

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert import record
from leanbayes.errors import ArtifactError, PredictionError
from leanbayes.eval_mode import undisturbed
from leanbayes.exports.answers import Answers, drawn, named
from leanbayes.exports.api import at_width
from leanbayes.exports.sharing import Shared
from leanbayes.likelihoods import Classification
from leanbayes.registry import methods

from ..contract.networks import NETWORKS, data

SAMPLES, SEED = 3, 5


def made(method, network="perceptron"):
    torch.manual_seed(1)
    model = NETWORKS[network]()
    lb.bayesianize_(model, methods()[method]())
    return model


def program(model, x, samples=SAMPLES, **options):
    """The shared graph of a model, without a second pass through the exporter."""
    with undisturbed(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = Answers(model, Classification(), x, drawn(model, x, samples, SEED, frozen=True), **options)
        dims = (({0: torch.export.Dim("batch")},),)
        return Shared(torch.export.export(answers, (x,), dynamic_shapes=dims, strict=False).run_decompositions({}))


def counted(graph):
    return Counter(node.target._opname for node in graph.module.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", sorted(methods()))
def test_answers_are_those_of_predict(method, network):
    model = made(method, network)
    x = data(network)[0]
    with undisturbed(model):
        noise = drawn(model, x[:2], SAMPLES, SEED, frozen=True)
        said = Answers(model, Classification(), x[:2], noise, keep=True)(x)
    wanted = lb.predict(model, x, SAMPLES, SEED, task="classification", keep_samples=True)
    assert len(noise) == int(wanted.counts[0])
    assert said.keys() == named(wanted).keys()
    for name, value in named(wanted).items():
        torch.testing.assert_close(said[name], value, rtol=1e-4, atol=1e-5)


def test_noise_of_the_graph_is_new_in_every_call_and_members_are_not():
    model, x = made("MeanField"), data("perceptron")[0]
    with undisturbed(model):
        answers = Answers(model, Classification(), x, drawn(model, x, 2, SEED, frozen=False))
        assert not torch.equal(answers(x)["probs"], answers(x)["probs"])
        model = made("Ensemble")
        answers = Answers(model, Classification(), x, drawn(model, x, 9, SEED, frozen=False))
        assert len(answers.noise) == 5
        assert torch.equal(answers(x)["probs"], answers(x)["probs"])


def test_the_prefix_stands_once_components_once_each_and_the_rest_for_every_sample():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Sigmoid(), nn.Linear(7, 3))
    lb.bayesianize_(model, {"2": lb.Patch(components=2, cross=False), "4": lb.MeanField()})
    graph = program(model, torch.randn(4, 6), samples=6)
    found = counted(graph)
    assert (found["tanh"], found["sigmoid"], found["linear"]) == (1, 2, 1 + 2 + 6)
    assert not found.keys() & {"softplus", "randn", "index_select"}  # weights are constants
    numbers = (6 * 8 + 8) + 2 * (8 * 7 + 7) + 6 * (7 * 3 + 3)
    assert numbers <= graph.constants / 4 <= numbers + 10
    for rows in (1, 7):
        inputs = torch.randn(rows, 6)
        wanted = lb.predict(model, inputs, 6, SEED, task="classification")
        torch.testing.assert_close(graph.module(inputs)[0], wanted.probs)
        torch.testing.assert_close(graph.module(inputs)[2], wanted.mutual_information, rtol=1e-4, atol=1e-6)


def test_a_narrow_network_has_narrow_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, by_importance=False))
    narrow, x = at_width(model, 0.5), torch.randn(4, 6)
    assert lb.widths(model)[-1] == 1.0
    graph = program(narrow, x, 2)
    assert {tuple(t.shape) for t in graph.module.buffers() if t.ndim == 2} == {(8, 6), (3, 8)}
    lb.set_width_(model, 0.5)
    torch.testing.assert_close(graph.module(x)[0], lb.predict(model, x, 2, SEED, task="classification").probs)


def test_a_width_has_its_own_temperature(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1))
    x = torch.randn(4, 6)
    for width, temperature in ((1.0, 0.25), (0.5, 4.0)):
        lb.set_width_(model, width)
        record.ensure(model).likelihood = lb.Classification(temperature=temperature).to_dict()
    lb.set_width_(model, 1.0)
    lb.export(model, tmp_path / "m.pt2", x[:1], width=0.5, noise="mean")
    lb.set_width_(model, 0.5)
    found = torch.export.load(tmp_path / "m.pt2").module()(x)[0]
    torch.testing.assert_close(found, lb.predict(model, x, mean_only=True).probs)


def test_a_file_of_torch(tmp_path):
    model = made("Ensemble")
    record.ensure(model).classes = ("a", "b", "c")
    record.ensure(model).likelihood = lb.Classification(temperature=2.0).to_dict()
    path = lb.export(
        model, tmp_path / "m.pt2", torch.zeros(1, 6), samples=9, seed=2, pixels=lb.Pixels(), metadata={"n": 1}
    )
    said = {"export.json": ""}
    graph = torch.export.load(path, extra_files=said).module()
    x = torch.randn(7, 6)
    wanted = lb.predict(model, x, samples=9, seed=2)
    for value, expected in zip(graph(x), named(wanted).values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
    document = json.loads(said["export.json"])
    assert document["samples"] == 5
    assert document["classes"] == ["a", "b", "c"]
    assert document["likelihood"]["temperature"] == 2.0
    assert document["metadata"] == {"n": 1}
    assert document["pixels"]["kind"] == "Pixels"
    assert document["inputs"] == [{"name": "input", "shape": [None, 6], "dtype": "float32"}]


def test_regression_returns_mean_and_variance():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    lb.bayesianize_(model, lb.MeanField())
    x, task = torch.randn(4, 3), lb.Regression("heteroscedastic")
    with undisturbed(model):
        said = Answers(model, task, x, drawn(model, x, 4, 1, frozen=True))(x)
    wanted = lb.predict(model, x, 4, 1, task=task)
    assert list(said) == ["mean", "variance", "epistemic", "entropy", "samples", "noise"]
    for name, value in named(wanted).items():
        torch.testing.assert_close(said[name], value, rtol=1e-4, atol=1e-6)


class Branches(nn.Module):
    """Python looks at a number of the input: no graph can."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else -self.layer(x)


class Draws(Branches):
    def forward(self, x):
        return nn.functional.dropout(self.layer(x), training=True)


GOOD = {"path": "m.pt2", "example": torch.zeros(1, 6), "samples": 2, "task": "classification"}


@pytest.mark.parametrize(
    ("model", "changes", "error", "message"),
    [
        (Branches(), {}, ArtifactError, "torch.export cannot trace the model: "),
        (Draws(), {}, ArtifactError, "draws numbers by itself"),
        (made("MeanField"), {"task": None}, PredictionError, "its task is not known"),
        (made("MeanField"), {"example": None}, ArtifactError, "example: expected"),
        (made("MeanField"), {"example": torch.zeros(0, 6)}, ArtifactError, "at least one datum"),
        (made("MeanField"), {"example": (torch.zeros(1, 6), torch.zeros(2))}, ArtifactError, "a row for every datum"),
        (
            made("MeanField"),
            {"example": torch.zeros(1, 5)},
            ArtifactError,
            "example: expected inputs that the model takes",
        ),
        (made("MeanField"), {"samples": 0}, ArtifactError, "samples: expected a whole number"),
        (made("MeanField"), {"samples": 5000}, ArtifactError, "from 1 to 4096, .*a part of the graph"),
        (made("MeanField"), {"noise": "none"}, ArtifactError, "noise: expected"),
        (made("MeanField"), {"path": "m.bin"}, ArtifactError, "ends with .onnx or .pt2"),
        (made("MeanField"), {"path": "."}, ArtifactError, "received a directory"),
        (made("MeanField"), {"path": "none/m.pt2"}, ArtifactError, "expected an existing directory"),
        (made("MeanField"), {"metadata": {"x": object()}}, ArtifactError, "what JSON can say"),
        (made("MeanField"), {"pixels": 0.5}, ArtifactError, "lb.Pixels"),
        (made("MeanField"), {"width": 0.5}, lb.LeanBayesError, "ordered channels"),
        (made("Ensemble"), {"noise": "mean"}, ArtifactError, 'use "frozen"'),
        (nn.Linear, {}, ArtifactError, "nn.Module"),
        (lb.Cascade([nn.Linear(6, 3), nn.Linear(6, 3)]), {}, ArtifactError, "export its stages"),
    ],
)
def test_refusals_leave_no_file(model, changes, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        lb.export(model, **GOOD | changes)
    assert list(tmp_path.iterdir()) == []
