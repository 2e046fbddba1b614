"""The image recipes of ensemble model patching: counts, networks that are trained once, and their measures."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.evaluation import corruption
from leanbayes.recipes.catalogue import find
from leanbayes.recipes.experiment import reproduce
from leanbayes.recipes.jobs import Jobs
from leanbayes.recipes.paper import printed
from leanbayes.recipes.patch import corruptions, networks, parameters, pretrained, prior, samples
from leanbayes.recipes.table import result_table
from leanbayes.recipes.training import trained_network


def values(row):
    return {name: summary["mean"] for name, summary in row["metrics"].items()}


def test_networks_are_trained_once_for_all_recipes(tmp_path, monkeypatch):
    first = reproduce("patch-calibration", "smoke", resume=tmp_path / "calibration")
    kept = sorted((tmp_path / "networks").iterdir())
    assert len(kept) == len(networks.METHODS) - 1 + networks.MEMBERS - 1  # an ensemble has none of its own
    json.dumps(first, allow_nan=False)
    rows = {row["method"]: values(row) for row in first["rows"]}
    assert set(networks.METHODS) | {"vanilla, temperature"} <= set(rows)
    assert rows["vanilla"]["overhead"] == rows["dropout"]["overhead"] == 0
    assert rows["ECMP (BN+out)"]["overhead"] == rows["EMP (BN+out)"]["overhead"] > rows["ECMP (BN)"]["overhead"] > 0
    assert rows["vanilla"]["accuracy"] > 0.5
    curve = first["rows"][0]["curves"]["calibration"]
    bins = [{name: value["mean"] for name, value in point.items() if name != "edge"} for point in curve]
    assert sum(b["share"] for b in bins) <= 1 + 1e-9
    gap = sum(b["share"] * abs(b["accuracy"] - b["confidence"]) for b in bins)
    assert gap == pytest.approx(rows["vanilla"]["ece"], abs=1e-6)
    assert result_table(first)
    assert find("patch-calibration").load().figure(first).startswith("<svg")

    monkeypatch.setattr(networks.PatchTraining, "train", lambda *args: pytest.fail("trained twice"))
    for name in ("patch-samples", "patch-corruptions", "patch-pretrained"):
        again = reproduce(name, "smoke", resume=tmp_path / name)
        json.dumps(again, allow_nan=False)
        assert result_table(again)
        assert find(name).load().figure(again).startswith("<svg")
        if name == "patch-corruptions":
            vanilla = values(again["rows"][0])
            assert vanilla["mce"] == pytest.approx(100)
            assert vanilla["rmce"] == pytest.approx(100)
    assert sorted((tmp_path / "networks").iterdir()) == kept


def test_a_network_read_back_is_the_one_that_was_trained(tmp_path):
    run = replace(networks.digits().of("ECMP (BN+out)"), rate=0.1)
    data = run.load()
    one, two = (trained_network(Jobs(tmp_path / "pieces"), run, 0, data) for _ in range(2))
    x = data.val.tensors[0]
    assert torch.equal(networks.probabilities(one, x, 20, 0), networks.probabilities(two, x, 20, 0))
    assert run.key(0) != run.key(1)
    assert run.key(0) != replace(run, components=4).key(0)


def test_validation_images_are_not_trained_on():
    data = networks.digits().training.load()
    assert [len(data.parts[name]) for name in ("train", "val", "test")] == [540, 60, 150]
    whole = torch.cat([data.train.tensors[0], data.val.tensors[0]])
    assert torch.equal(whole, lb.data.load("digits", val_fraction=0).train.tensors[0][:600])


@pytest.mark.parametrize("method", ["dropout", "EMP (BN)", "ECMP (BN+out)"])
def test_methods_take_the_rate_with_the_lowest_validation_loss(method, monkeypatch):
    losses = {0.1: 0.5, 0.2: 0.3, 0.4: 0.9}
    monkeypatch.setattr(networks, "validation_loss", lambda jobs, run, seed, data: losses[run.rate])
    monkeypatch.setattr(networks, "trained_network", lambda jobs, run, seed, data: run.rate)
    setup = networks.digits(rates=tuple(losses), perturbations=tuple(losses))
    model, run = networks.chosen(Jobs(None), setup, method, 0, None)
    assert (model, run.rate) == (0.2, 0.2)


def test_first_samples_are_those_of_a_smaller_prediction():
    training = replace(networks.digits().of("ECMP (BN+out)"), rate=0.1, epochs=1)
    data = training.load()
    model = training.train(0, data)
    x = data.test.tensors[0][:20]
    for size, probs in samples.prefixes(model, x, (1, 5, 10), seed=3).items():
        wanted = lb.predict(model, x, samples=size, seed=3, task="classification").probs
        torch.testing.assert_close(probs, wanted, atol=1e-5, rtol=1e-5)
    balanced, independent = (samples.prefixes(model, x, (5,), 3, choice)[5] for choice in (True, False))
    assert not torch.allclose(balanced, independent)


def test_corruption_errors_are_those_of_evaluate():
    cells = [("fog", 1), ("fog", 5), ("snow", 1), ("snow", 5)]
    runs = []
    for clean, accuracies in ((0.9, (0.8, 0.5, 0.7, 0.6)), (0.95, (0.9, 0.6, 0.6, 0.4))):
        run = [{"corruption": "clean", "severity": 0, "accuracy": clean}]
        for (name, severity), accuracy in zip(cells, accuracies, strict=True):
            run.append({"corruption": name, "severity": severity, "accuracy": accuracy, "ece": 0.1, "nll": 1.0})
        runs.append(run)
    found = corruptions.relative(*runs)
    errors = [{(p["corruption"], p["severity"]): 1 - p["accuracy"] for p in run[1:]} for run in runs]
    assert found["mce"] == pytest.approx(100 * corruption.mce(*errors))
    assert found["rmce"] == pytest.approx(100 * corruption.relative_mce(errors[0], 0.1, errors[1], 0.05))
    lost = [sum(e - clean for e in each.values()) for each, clean in zip(errors, (0.1, 0.05), strict=True)]
    assert found["lost"] == pytest.approx(100 * lost[0] / lost[1])
    assert found["fog"] == pytest.approx(100 * 0.7 / 0.5)
    assert found["corrupted accuracy"] == pytest.approx(0.65)


def count(network, method):
    return parameters.measured(network, method, Jobs(None), 0)


def test_parameter_counts_are_the_papers():
    for network in (parameters.RESNET, parameters.STACK):
        known = printed("patch-parameters", network.model)
        for method in ("EMP (BN+out)", "ECMP (BN+out)", "dropout", "DropConnect", "vanilla"):
            found = count(network, method)
            if network is parameters.RESNET:
                assert found["parameters"] == known[method]
            assert found["added"] == known[method] - known["vanilla"]
    resnet = parameters.RESNET
    assert count(resnet, "ECMP (BN)")["overhead, %"] == pytest.approx(0.328, abs=1e-3)
    assert count(resnet, "explicit ensemble")["parameters"] == 58_447_560
    assert count(parameters.STACK, "ECMP (BN+out)")["added"] == 119_200


def test_pyramidnet_counts():
    found = count(parameters.PYRAMID, "EMP (BN+out)")
    assert found["parameters"] == 28_825_299
    assert found["overhead, %"] == pytest.approx(1.10, abs=5e-3)


@pytest.mark.parametrize(
    ("method", "size"),
    [
        ("EMP (BN)", 2 * math.log10(5)),
        ("ECMP (BN)", 128 * math.log10(5)),
        ("EMP (BN+out)", 3 * math.log10(5)),
        ("ECMP (BN+out)", (128 + 330) * math.log10(5)),
        ("dropout", 64 * math.log10(2)),
        ("DropConnect", (1024 + 320) * math.log10(2)),
        ("explicit ensemble", math.log10(5)),
        ("mean-field", None),
    ],
)
def test_ensemble_sizes(method, size):
    found = parameters.log10_size(method, parameters.build(parameters.SMALL))
    assert found == (None if size is None else pytest.approx(size))


@pytest.mark.parametrize("name", ["patch-parameters", "patch-prior"])
def test_smoke_of_those_that_train_nothing(name, tmp_path):
    result = reproduce(name, "smoke", resume=tmp_path)
    json.dumps(result, allow_nan=False)
    assert result_table(result)
    if (draw := find(name).load().figure) is not None:
        assert draw(result).startswith("<svg")


@pytest.mark.parametrize("method", prior.METHODS)
def test_the_number_of_steps_has_a_closed_form(method):
    """b / w is Cauchy of scale bias_std / weight_std; dropout needs w and W both to be there."""
    setup = prior.PriorSetup(functions=100)
    found = prior.measured(setup, method, Jobs(None), 0)
    inside = 2 / math.pi * math.atan(10 * setup.weight_std / setup.bias_std)
    share = inside * (0.25 if method == "dropout" else 1.0)
    error = math.sqrt(100 * share * (1 - share) / 100)
    assert found["steps"] == pytest.approx(100 * share, abs=4 * error)
    assert found["correlation"] == pytest.approx(1.0) if method == "full network" else found["correlation"] < 0.5


def test_functions_are_those_of_the_formula():
    setup = prior.PriorSetup(hidden=7)
    one, two = prior.pair(setup, "ECMP", 2, torch.Generator().manual_seed(0))
    for weights in (one, two):
        for n in range(2):
            for x in (-3.0, 0.5):
                value = weights.shift[n, 0].item()
                for h in range(7):
                    inside = weights.b[n, h].item() + weights.w[n, h].item() * x
                    value += weights.output[n, h].item() * math.copysign(1, inside)
                assert weights(torch.tensor([x]))[n, 0].item() == pytest.approx(value, rel=1e-4, abs=1e-4)


def test_patches_on_a_trained_network_start_from_it(tmp_path):
    setup = pretrained.SETUPS["smoke"][0]
    data, jobs = setup.training.load(), Jobs(tmp_path / "pieces")
    vanilla = trained_network(jobs, setup.of("vanilla"), 0, data)
    x = data.test.tensors[0]
    near = pretrained.patched(vanilla, setup.of("ECMP (BN+out)"), 1e-6, 0)
    torch.testing.assert_close(
        networks.probabilities(near, x, 5, 0), networks.probabilities(vanilla, x, 1, 0), atol=1e-4, rtol=0
    )
    assert sum(p.numel() for p in near.parameters()) > sum(p.numel() for p in vanilla.parameters())
    cells = list(pretrained.cells("smoke"))
    assert [(cell.method, cell.setting) for cell in cells][:2] == [("vanilla", "as it was"), ("vanilla", "trained on")]
    assert {cell.setting for cell in cells[2:]} == set(pretrained.SETUPS["smoke"][2])


def test_an_average_has_the_mean_probabilities_of_its_members():
    members = [nn.Linear(4, 3) for _ in range(3)]
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([member(x).softmax(1) for member in members]).mean(0)
    assert torch.allclose(networks.Average(members)(x).softmax(1), expected, atol=1e-6)


def test_the_regularised_network_keeps_its_best_epoch_and_sees_augmented_images():
    setup = networks.digits()
    run = setup.of(networks.REGULARISED)
    data = run.load()
    options = run.fit_options(data)
    assert run.augment
    assert not setup.of("vanilla").augment
    assert options["early_stopping"].restore_best
    assert options["val"] is data.val
    assert setup.candidates(networks.REGULARISED) == (0.1,)
    assert setup.candidates(networks.ENSEMBLE) == ()
