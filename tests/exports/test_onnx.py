"""Files of ONNX, run by onnxruntime: the answers of `predict` for every method, by frozen noise and in distribution."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import models
from leanbayes.cli import main
from leanbayes.convert import record
from leanbayes.errors import ArtifactError, DataError
from leanbayes.exports.answers import named
from leanbayes.registry import methods

from ..contract.networks import NETWORKS, data

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.extra
METHODS = sorted(methods())
RANDOM = [name for name in METHODS if name not in ("Ensemble", "NestedDropout", "Point", "Rigl")]


def made(method, network):
    torch.manual_seed(1)
    model = NETWORKS[network]()
    lb.bayesianize_(model, methods()[method]())
    record.ensure(model).likelihood = lb.Classification(temperature=0.5).to_dict()
    return model


def equal(found, wanted, tolerance=1e-4):
    for name, value in named(wanted).items():
        if name in found:
            np.testing.assert_allclose(found[name], value.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def operations(path, kind):
    return sum(node.op_type == kind for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_frozen_noise_gives_the_answers_of_predict(method, network, tmp_path):
    model = made(method, network)
    path = lb.export(model, tmp_path / "m.onnx", data(network)[0][:1], samples=2, seed=3)
    exported = lb.read_export(path)
    x = data(network, n=21)[0]
    for rows in (1, 21):
        equal(exported.run(x[:rows]), lb.predict(model, x[:rows], samples=2, seed=3))


@pytest.mark.parametrize("method", RANDOM)
def test_noise_of_the_graph_has_the_distribution_of_predict(method, tmp_path):
    """10^4 networks each: means agree within 5 standard errors, spreads within a fifth."""
    model = made(method, "perceptron")
    x = data("perceptron", n=3)[0]
    options = {"samples": 2, "noise": "graph", "keep_samples": True}
    exported = lb.read_export(lb.export(model, tmp_path / "m.onnx", x, **options))
    said = np.concatenate([exported.run(x)["samples"] for _ in range(5000)])
    wanted = lb.predict(model, x, samples=10_000, keep_samples=True, balanced=False).samples.numpy()
    assert len(said) == len(wanted) == 10_000
    assert len(np.unique(said[:, 0, 0])) > 1
    error = np.sqrt((said.var(0) + wanted.var(0)) / 10_000)
    assert (abs(said.mean(0) - wanted.mean(0)) < 5 * error + 1e-6).all()
    np.testing.assert_allclose(said.std(0), wanted.std(0), rtol=0.2)
    apart = np.corrcoef(said[0::2, 0, 0], said[1::2, 0, 0])[0, 1]  # neighbours in one pass are independent
    assert abs(apart) < 5 / np.sqrt(5000)


def test_the_prefix_stands_once(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    )
    lb.bayesianize_(model, {"5": lb.MeanField()})
    for samples in (2, 7):
        path = lb.export(model, tmp_path / "m.onnx", torch.zeros(1, 1, 8, 8), samples=samples, task="classification")
        assert operations(path, "Conv") == 2
        assert operations(path, "Gemm") == samples


def test_an_ensemble_has_all_its_members(tmp_path):
    model = made("Ensemble", "perceptron")
    path = lb.export(model, tmp_path / "m.onnx", torch.zeros(1, 6), samples=64)
    assert operations(path, "Gemm") == 5 * 3
    assert lb.read_export(path).samples == 5
    x = torch.randn(4, 6)
    equal(lb.read_export(path).run(x), lb.predict(model, x, samples=64))


def test_means_of_a_narrow_network_are_cut(tmp_path):
    model = made("Nested", "perceptron")
    path = lb.export(model, tmp_path / "m.onnx", torch.zeros(1, 6), width=0.5, noise="mean")
    shapes = {tuple(t.dims) for t in onnx.load(path).graph.initializer if len(t.dims) == 2}
    assert (64, 64) not in shapes
    lb.set_width_(model, 0.5)
    x = torch.randn(4, 6)
    equal(lb.read_export(path).run(x), lb.predict(model, x, mean_only=True))


def test_a_prediction_with_its_names_sets_and_pixels(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    lb.bayesianize_(model, lb.MeanField())
    x, y = torch.randn(60, 1, 2, 2), torch.arange(60) % 3
    lb.fit(model, (x, y), epochs=1, progress=False)
    record.ensure(model).classes = ("ant", "bee", "cat")
    lb.conformalize_(model, (x, y), samples=4, progress=False)
    pixels = lb.Pixels(mean=(0.5,), std=(0.25,))
    path = lb.export(model, tmp_path / "m.onnx", x, samples=4, pixels=pixels, metadata={"by": "me"})
    exported = lb.read_export(path)
    assert (exported.pixels, exported.metadata, exported.classes) == (pixels, {"by": "me"}, ("ant", "bee", "cat"))
    found, wanted = exported.predict(x[:9]), lb.predict(model, x[:9], samples=4)
    assert found.class_names == wanted.class_names
    assert torch.equal(found.prediction_sets, wanted.prediction_sets)
    for name in ("probs", "entropy", "mutual_information", "variance", "aleatoric", "energy"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-5)
    assert repr(exported) == "ExportedModel(classification, 4 samples, input: [None, 1, 2, 2])"
    for wrong, message in (
        (x[:, :, :1], r"expected shape \(batch, 1, 2, 2\)"),
        ((x, x), "1 tensor"),
        ("x", "inputs: "),
    ):
        with pytest.raises(DataError, match=message):
            exported.run(wrong)
    with pytest.raises(DataError, match="input"):
        exported.run({"image": x})


def test_a_regression_and_several_inputs(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], 1))

    model = Two()
    lb.bayesianize_(model, lb.MeanField())
    x = {"left": torch.randn(6, 2), "right": torch.randn(6, 3)}
    path = lb.export(model, tmp_path / "m.onnx", x, samples=4, task=lb.Regression(std=0.5))
    exported = lb.read_export(path)
    found, wanted = exported.predict(x), lb.predict(model, x, samples=4, task=lb.Regression(std=0.5))
    for name in ("mean", "variance", "aleatoric", "epistemic", "entropy"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.interval(0.9), wanted.interval(0.9), rtol=1e-4, atol=1e-4)


def test_students_and_stages(tmp_path):
    """A Dirichlet distribution says in closed form what samples say otherwise; a stage of a cascade is a network."""
    torch.manual_seed(0)
    student, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(9, 6)
    task = lb.likelihoods.dirichlet.Dirichlet(scale=5.0)
    found = lb.read_export(lb.export(student, tmp_path / "s.onnx", x, task=task)).predict(x)
    wanted = lb.predict(student, x, task=task)
    assert wanted.mutual_information.min() > 0.01
    for name in ("probs", "entropy", "mutual_information", "variance", "energy"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-4)

    cascade = lb.Cascade(made("Nested", "perceptron"), widths=[0.5, 1.0])
    for number, stage in enumerate(cascade.stages):
        task = cascade.likelihood(number)
        path = lb.export(stage, tmp_path / f"{number}.onnx", x, noise="mean", task=task)
        equal(lb.read_export(path).run(x), lb.predict(stage, x, mean_only=True, task=task))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_one_pass_of_moments(task, tmp_path):
    torch.manual_seed(0)
    if task == "classification":
        layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)]
    else:
        layers = [nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 1)]
    model, x = nn.Sequential(*layers), torch.randn(9, 1, 6, 6)
    lb.bayesianize_(model, lb.MeanField(std=0.2))
    exported = lb.read_export(lb.export(model, tmp_path / "m.onnx", x[:1], seed=3, noise="moments", task=task))
    for rows in (1, 9):
        wanted = lb.predict(model, x[:rows], seed=3, estimator="moments", task=task)
        equal(exported.run(x[:rows]), wanted)
        assert torch.equal(exported.predict(x[:rows]).counts, wanted.counts)


@pytest.mark.parametrize(
    ("score", "stages"), [("max_probability", 3), ("entropy", 2), ("margin", 2), ("mutual_information", 2)]
)
def test_a_cascade_in_one_file(score, stages, tmp_path):
    networks = []
    for seed in range(stages):
        torch.manual_seed(seed)
        networks.append(nn.Sequential(nn.Linear(6, 3)))
        lb.bayesianize_(networks[-1], lb.MeanField(std=0.5))
    x = 2 * torch.randn(40, 6)
    cascade = lb.Cascade(networks, samples=(2, 3, 4)[:stages], score=score)
    first = cascade.unsureness((said := lb.predict(networks[0], x, 2, 5, task="classification")).probs, said.epistemic)
    ordered = first.sort().values  # thresholds between the scores of two data: rounding does not decide
    cascade.set_thresholds([float(ordered[k : k + 2].mean()) for k in (20, 16)][: stages - 1])
    exported = lb.read_export(lb.export(cascade, tmp_path / "c.onnx", x[:1], seed=5))
    wanted = lb.predict(cascade, x, seed=5)
    assert set(wanted.stages.tolist()) == set(range(stages))
    found = exported.predict(x)
    assert torch.equal(found.stages, wanted.stages)
    equal(exported.run(x), wanted)
    for row in range(6):  # one by one: stages that are not asked do not run
        equal(exported.run(x[row : row + 1]), lb.predict(cascade, x[row : row + 1], seed=5))


def test_stages_that_never_answer_are_left_out(tmp_path):
    networks, x = [nn.Sequential(nn.Linear(6, 3)) for _ in range(3)], torch.randn(9, 6)
    cascade = lb.Cascade(networks)
    cascade.set_thresholds([-np.inf, np.inf])
    alone = lb.read_export(lb.export(cascade, tmp_path / "one.onnx", x[:1], seed=5))
    equal(alone.run(x), lb.predict(cascade, x, seed=5))


def test_a_cascade_of_widths_and_of_samples(tmp_path):
    nested = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    lb.bayesianize_(nested, lb.Nested())
    x = torch.randn(30, 6)
    for cascade in (
        lb.Cascade(nested, widths=(0.25, 1.0), thresholds=[0.5]),
        lb.Cascade(nested, samples=(1, 4), thresholds=[0.5]),
    ):
        exported = lb.read_export(lb.export(cascade, tmp_path / "c.onnx", x[:1], seed=5))
        wanted = lb.predict(cascade, x, seed=5)
        assert torch.equal(exported.predict(x).stages, wanted.stages)
        equal(exported.run(x), wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "moments"}, "noise: expected nothing with a cascade"),
        ({"width": 0.5}, "width: expected nothing with a cascade"),
        ({"keep_samples": True}, "keep_samples: expected nothing"),
    ],
)
def test_options_of_one_network_are_refused_with_a_cascade(options, message, tmp_path):
    with pytest.raises(ArtifactError, match=message):
        lb.export(lb.Cascade([nn.Linear(4, 3), nn.Linear(4, 3)]), tmp_path / "c.onnx", torch.zeros(1, 4), **options)
    assert not list(tmp_path.iterdir())


def test_foreign_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(ArtifactError, match="found none"):
        lb.read_export(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ArtifactError, match="onnxruntime refuses"):
        lb.read_export(path)
    lb.export(nn.Linear(2, 2), path, torch.zeros(1, 2), task="classification")
    proto = onnx.load(path)
    assert [part for node in proto.graph.node for part in node.metadata_props] == []  # no path of this machine
    document = json.loads(proto.metadata_props[0].value)
    for change, message in (({"version": 2}, "version 1"), ({"classes": 3}, "damaged"), (None, "another origin")):
        if change is None:
            del proto.metadata_props[:]
        else:
            proto.metadata_props[0].value = json.dumps(document | change)
        onnx.save(proto, path)
        with pytest.raises(ArtifactError, match=message):
            lb.read_export(path)


@pytest.mark.parametrize("static", [True, False])
def test_eight_bits_say_nearly_the_same(static, tmp_path):
    model = made("MeanField", "convolutional")
    x = data("convolutional", n=64)[0]
    path = lb.export(model, tmp_path / "m.onnx", x, noise="mean", metadata={"by": "me"})
    small = lb.quantize_export(path, tmp_path / "small.onnx", (x, torch.zeros(64)) if static else None)
    found, wanted = lb.read_export(small), lb.read_export(path)
    assert found.document == wanted.document
    said, exact = found.run(x)["probs"], wanted.run(x)["probs"]
    assert 0 < abs(said - exact).max() < 0.05
    assert any(t.data_type == onnx.TensorProto.INT8 for t in onnx.load(small).graph.initializer)
    with pytest.raises(DataError, match="expected shape"):
        lb.quantize_export(path, tmp_path / "none.onnx", torch.zeros(4, 5))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "small.onnx"]


def test_the_page_about_exports_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "deploy" / "export.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        exec(block, names)


def test_the_command(tmp_path, capsys):
    model = models.build("convnet")
    lb.bayesianize_(model, lb.MeanField())
    training = {"network": {"name": "convnet", "options": {}}, "input_shape": [1, 8, 8], "classes": list("abcdefghij"),
                "mean": [0.5], "std": [0.25]}  # fmt: skip
    lb.save(model, tmp_path / "m.safetensors", task="classification", metadata={"training": training})
    arguments = ["export", str(tmp_path / "m.safetensors"), str(tmp_path / "m.onnx"), "--samples", "2"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "m.onnx").stat().st_size
    exported = lb.read_export(tmp_path / "m.onnx")
    assert exported.classes == tuple("abcdefghij")
    assert exported.pixels == lb.Pixels((0.5,), (0.25,))
    x = torch.randn(3, 1, 8, 8)
    equal(exported.run(x), lb.predict(model, x, samples=2, task="classification"))
