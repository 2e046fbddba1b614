"""The recipes of variance networks: what they train, what they measure, and that the smoke presets run."""

import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.jobs import Jobs
from leanbayes.recipes.table import result_table
from leanbayes.recipes.training import Training, linear_decay, shift_and_mirror
from leanbayes.recipes.variance import accuracy, measures, parameterisations, prior, zero_mean
from leanbayes.recipes.variance.networks import Line, cell, small

NAMES = ["variance-accuracy", "variance-parameterisations", "variance-zero-mean", "variance-prior"]


@pytest.fixture
def quick(monkeypatch):
    """The perceptron of the smoke preset, trained for an epoch only."""

    def smaller(methods, **changes):
        return small(methods, **{"epochs": 1, **changes})

    for module in (accuracy, parameterisations, prior, zero_mean):
        monkeypatch.setattr(module, "small", smaller)


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, quick, tmp_path):
    result = reproduce(name, "smoke", resume=tmp_path)
    json.dumps(result, allow_nan=False)
    for row in result["rows"]:
        assert {"stochastic", "ensemble"} <= set(row["metrics"])
        assert ("deterministic" in row["metrics"]) == ("zero mean" not in row["method"])
        assert 0.1 < row["metrics"]["ensemble"]["mean"] <= 1
        assert all(metric["mean"] is not None for metric in row["metrics"].values())
    assert result_table(result)
    again = reproduce(name, "smoke", resume=tmp_path)
    assert again["rows"] == result["rows"]


@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
def test_every_row_names_layers_that_exist(preset):
    for module in (accuracy, parameterisations, prior, zero_mean):
        for line in module.lines(preset).values():
            assert planned(line.training)


def planned(run):
    sizes = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
    options = {"num_classes": 10, **({"in_channels": sizes[run.data][0]} if run.model != "mlp" else {})}
    if run.model == "mlp":
        options = {"in_features": 64, "out_features": 10}
    with torch.device("meta"):
        model = lb.models.build(run.model, **{**options, **run.options})
    plan = lb.plan(model, dict(run.methods))  # a rule that speaks of no layer is an error
    return plan.converted


def test_the_paper_preset_is_as_published():
    run = accuracy.lines("paper")["variance, dense1"].training
    assert (run.epochs, run.lr, run.lr_scale, run.batch_size, run.limit) == (200, 1e-3, None, 200, None)
    assert run.options == {"batch_norm": True, "bias": False}
    assert run.methods == {"dense1": lb.Variance(log_alpha=-5.0)}
    vgg = accuracy.lines("paper")["variance, VGG-like"].training
    assert (vgg.epochs, vgg.batch_size, vgg.augment, vgg.options) == (550, 100, True, {"dropout_last": False})
    assert [name for name, m in vgg.methods.items() if isinstance(m, lb.Variance)] == [
        "conv11",
        "conv12",
        "conv13",
        "dense1",
    ]


def test_noise_has_a_learning_rate_of_its_own_and_all_fall_to_zero():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    lb.bayesianize_(model, {"0": lb.Variance(), "1": lb.Variance("zero")})
    adam = Training("digits", "mlp", lr_scale=1e-2, beta_scale=0.99).optimizer(model)
    others, scales = adam.param_groups
    assert (others["lr"], scales["lr"], scales["betas"]) == (1e-3, 1e-2, (0.9, 0.99))
    assert len(scales["params"]) == 2
    assert sum(len(g["params"]) for g in adam.param_groups) == len(list(model.parameters()))
    schedule = linear_decay(adam, epochs=4)
    rates = []
    for _ in range(4):
        rates.append(scales["lr"])
        adam.step()
        schedule.step()
    assert rates == pytest.approx([1e-2, 7.5e-3, 5e-3, 2.5e-3])


def test_augmentation_shifts_and_mirrors():
    image = torch.arange(36.0).reshape(1, 6, 6) + 1
    batch = [(image, torch.tensor(i % 10)) for i in range(400)]
    images, labels = shift_and_mirror(batch, pad=1)
    assert images.shape == (400, 1, 6, 6)
    assert labels.tolist() == [i % 10 for i in range(400)]
    padded = nn.functional.pad(image, (1, 1, 1, 1))
    crops = [padded[:, i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    wanted = torch.stack([*crops, *(c.flip(-1) for c in crops)])
    found = (images.unsqueeze(1) == wanted).flatten(2).all(-1)
    assert found.any(1).all()
    assert found.any(0).all()


def test_measures_agree_with_a_direct_count():
    run = small({"4": lb.Variance(log_alpha=1.0)}, epochs=1, limit=200, test_limit=50)
    data = run.load()
    model = run.train(0, data)
    assert (len(data.train), len(data.test)) == (200, 50)
    x, y = data.test.tensors
    by_hand = (lb.predict(model, x, samples=3, seed=7).probs.argmax(1) == y).double().mean().item()
    assert measures.accuracy(model, data, samples=3, seed=7) == pytest.approx(by_hand)
    assert measures.log_alphas(model) == {"log alpha 4": pytest.approx(model[4].posteriors["weight"].log_alpha.item())}
    assert measures.shares_below(model, 50.0) == {"stuck 4": 1.0}
    found = measures.elbo(model, data, seed=0)
    assert found["KL"] == pytest.approx(lb.kl_sum(model).item(), rel=1e-5)
    assert found["ELBO"] < -found["KL"]
    before = [b.clone() for b in model.buffers()]
    measures.recalibrated_accuracy(model, data)
    measures.swapped_accuracy(model, data, samples=2, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))  # worked on copies
    assert model[4].posteriors["weight"].has_mean


def test_a_piece_is_kept_by_all_that_it_depends_on(tmp_path):
    jobs = Jobs(tmp_path / "pieces")
    for seed, method in ((0, lb.Variance()), (1, lb.Variance()), (0, lb.Variance("neuron")), (0, lb.Variance())):
        line = Line(small({"4": method}, epochs=1, limit=100, test_limit=20))
        made = cell(line, "test", "variance", 1, lambda model, data, samples, seed: {"n": len(data.test)})
        jobs({**made.key, "seed": seed}, lambda made=made, seed=seed: made.measure(jobs, seed))
    assert line.training.key(0) != line.training.key(1)
    assert len(list((tmp_path / "pieces").iterdir())) == 3
