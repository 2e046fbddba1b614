"""The recipes of sparse subspace VI: what they train, what they measure, and that the smoke presets run."""

import json
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.recipes.catalogue import find
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.jobs import Jobs
from leanbayes.recipes.sparse import accuracy, criteria
from leanbayes.recipes.sparse.measures import weights_in_all, weights_in_use
from leanbayes.recipes.sparse.networks import SparseTraining, digits, lenet, mlp, published, resnet
from leanbayes.recipes.table import result_table
from leanbayes.recipes.training import trained_network

QUALITY = {"accuracy", "nll", "ece", "classwise_l2"}
NAMES = [f"sparse-{x}" for x in ("accuracy", "density", "criteria", "init", "addition", "ood", "corruption", "cost")]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Every smoke preset, run once."""
    folder, found = tmp_path_factory.mktemp("pieces"), {}

    def run(name):
        if name not in found:
            found[name] = reproduce(name, "smoke", resume=folder / name)
        return found[name]

    run.folder = folder
    return run


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, once):
    result = once(name)
    json.dumps(result, allow_nan=False)
    assert result["rows"]
    for row in result["rows"]:
        assert all(metric["mean"] is not None for metric in row["metrics"].values()), row
        if name != "sparse-cost" and "IoU" not in row["method"]:
            assert set(row["metrics"]) >= QUALITY
            assert 0.05 < row["metrics"]["accuracy"]["mean"] <= 1
    assert result_table(result)
    drawn = find(name).load().figure
    assert (drawn is None) == (name in ("sparse-accuracy", "sparse-ood"))
    if drawn is not None:
        picture = drawn(json.loads(json.dumps(result)))
        assert picture.startswith("<svg")
        ElementTree.fromstring(picture)


def test_no_network_is_trained_twice(once, monkeypatch):
    """Recipes under one --resume folder share them, and a network read back measures as the one that was trained."""
    was = {row["method"]: row["metrics"]["accuracy"] for row in once("sparse-accuracy")["rows"]}
    monkeypatch.setattr(SparseTraining, "train", lambda *args, **options: pytest.fail("trained twice"))
    again = reproduce("sparse-ood", "smoke", resume=once.folder / "again")
    now = {row["method"]: row["metrics"]["accuracy"] for row in again["rows"]}
    assert now["dense VI"] == was["dense VI"]
    assert now["sparse subspace"] == was["sparse subspace, 10 %"]
    assert now["RigL"] == was["RigL, 10 %"]
    assert not list(once.folder.glob("networks/*.checkpoint"))


def test_an_interrupted_training_goes_on(tmp_path, monkeypatch):
    training, jobs = replace(digits().subspace(0.1), limit=200), Jobs(tmp_path / "pieces")
    data, train = training.load(), SparseTraining.train
    whole = training.train(0, data).state_dict()

    def network(**hooks):
        def watched(self, seed, data, **options):
            return train(self, seed, data, callbacks=[Hooks(**hooks)], **options)

        monkeypatch.setattr(SparseTraining, "train", watched)
        return trained_network(jobs, training, 0, data)

    def stop(state):
        if state.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        network(before_step=stop)
    assert sorted(path.suffix for path in tmp_path.glob("networks/*")) == [".checkpoint", ".previous"]
    resumed = network(before_step=lambda state: None).state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in resumed.items())
    assert [path.suffix for path in tmp_path.glob("networks/*")] == [".safetensors"]


class Hooks(SimpleNamespace):
    """A callback of the functions it is given."""


def test_the_accuracy_table_says_what_is_left(once):
    rows = {row["method"]: row["metrics"] for row in once("sparse-accuracy")["rows"]}
    assert rows["dense VI"]["density"]["mean"] == rows["dense VI"]["x dense VI"]["mean"] == 1
    weights = [64 * 64, 64 * 64, 640]
    for name, density in (("sparse subspace, 10 %", 0.1), ("RigL, 5 %", 0.05)):
        left = weights[0] + sum(round(density * n) for n in weights[1:])
        assert rows[name]["density"]["mean"] == pytest.approx(left / sum(weights))
    assert rows["sparse subspace, 10 %"]["x dense VI"]["mean"] == pytest.approx(
        rows["sparse subspace, 10 %"]["density"]["mean"], rel=1e-3
    )
    assert rows["SBP"]["x dense VI"]["mean"] == 0.5  # noise on channels: one pass


def test_criteria_two_and_four_are_one(once):
    rows = once("sparse-criteria")["rows"]
    found = {(row["method"], row["setting"]): row["metrics"]["accuracy"] for row in rows if "IoU" not in row["method"]}
    assert found["snr", 0.01] == found["snr-abs", 0.01]
    pairs = {
        (row["method"], row["setting"]): row["metrics"]["removed"]["mean"]
        for row in rows
        if row["method"].startswith("IoU")
    }
    for stage in ("start", "middle", "end"):
        assert pairs[f"IoU at the {stage}", "snr & snr-abs"] == 1
        assert all(0 <= v <= 1 for v in pairs.values())
    steps = [point["step"] for point in rows[-1]["curves"]["average IoU"]]
    assert steps == sorted(steps)
    assert steps


def test_iou_is_that_of_sets():
    masks = [{"a": [1, 1, 0, 0], "b": [1, 0, 1, 0]}, {"a": [1, 0], "b": [1, 0]}]
    layers = [{name: torch.tensor(m, dtype=torch.bool) for name, m in layer.items()} for layer in masks]
    assert criteria.agreement(layers) == {"removed a & b": 2 / 4, "kept a & b": 2 / 4}


def test_the_published_formula_is_criterion_four_where_precision_allows():
    from leanbayes.methods.sparse.criteria import signal_to_noise_of_magnitude

    mu, sigma = torch.linspace(0.5, 3, 20), torch.ones(20)
    exact = signal_to_noise_of_magnitude(mu, sigma).float()
    assert torch.allclose(criteria.as_published(mu, sigma), exact, rtol=1e-4)
    small = torch.linspace(1e-6, 1e-3, 2000)
    assert len(criteria.as_published(small, torch.ones(2000)).unique()) < 100  # ties


def test_cost_rows_are_measured_and_nominal(once):
    rows = {(row["method"], row["setting"]): row["metrics"] for row in once("sparse-cost")["rows"]}
    sparse_row = rows["sparse subspace", 0.1]
    assert sparse_row["nominal share"]["mean"] < rows["sparse subspace", 0.5]["nominal share"]["mean"] < 1
    assert sparse_row["share of bytes"]["mean"] < 1 == rows["dense VI", 1.0]["share of bytes"]["mean"]
    assert all(row["seconds"]["mean"] > 0 for row in rows.values())
    assert rows["sparse subspace", 0.5]["compiled"]["mean"] == 0


@pytest.mark.parametrize("make", [digits, mlp, lenet, resnet, published])
def test_every_run_names_layers_that_exist(make):
    setup = make()
    options = {"num_classes": 10}
    if setup.training.model == "mlp":
        options = {"in_features": 64, "out_features": 10}
    else:
        options["in_channels"] = 1 if setup.training.data == "fashion-mnist" else 3
    for run, _ in accuracy.contestants(setup).values():
        with torch.device("meta"):
            model = lb.models.build(run.model, **{**options, **run.options})
        assert lb.plan(model, dict(run.methods)).converted


def test_the_paper_preset_is_as_run():
    run = published().subspace(0.05)
    assert (run.epochs, run.lr, run.batch_size, run.momentum, run.weight_decay) == (200, 0.01, 128, 0.9, 5e-4)
    assert (run.kl_weight, run.warmup, run.augment, run.limit) == (0.01, 0.5, True, None)
    method = run.methods["*"]
    assert (method.interval, method.replacement, method.until, method.schedule) == (100, 0.3, 0.75, "cosine")
    assert (method.prior, method.init_std, method.removal) == (lb.Normal(std=0.005), 0.01, "snr-abs")
    rise = run.kl_schedule(50_000)
    assert (rise(0), rise(100 * 391)) == (0, 0.01)
    assert rise(50 * 391) == pytest.approx(0.005)
    for data in ("cifar10", "cifar100"):
        assert accuracy.cited(data).keys() == {"AEB (cited)", "mBNN (cited)"}


def test_scales_have_no_weight_decay():
    setup = digits()
    for run, scales in ((setup.subspace(0.1), 3), (setup.structured(), 4), (setup.rigl(0.1), 0)):
        torch.manual_seed(0)
        model = lb.models.build("mlp", in_features=64, out_features=10, **run.options)
        lb.bayesianize_(model, dict(run.methods))
        groups = run.optimizer(model).param_groups
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
        assert sum(len(g["params"]) for g in groups[1:]) == scales
        assert all(g["weight_decay"] == 0 for g in groups[1:])


def test_weights_in_use_counts_each_once():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10), nn.BatchNorm1d(10))
    assert weights_in_use(model) == weights_in_all(model) == 300
    lb.bayesianize_(model, {"0": lb.SparseSubspace(density=0.2), "1": lb.MeanField()})
    assert weights_in_use(model) == 20 + 100 + 100
    lb.prune_(model, fraction=0.5)
    assert weights_in_use(model) == 60 + 100


def test_dense_means_start_small_where_told():
    run = published().dense()
    model = nn.Sequential(nn.Conv2d(3, 64, 3))
    run.convert_(model)
    assert model[0].posteriors["weight"].loc.std().item() == pytest.approx(0.01, rel=0.1)
