"""The recipe of table 8: its cells, the same care for all, and what is measured of known answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert import record
from leanbayes.data import DataSet, load
from leanbayes.data.dataset import Part
from leanbayes.likelihoods import Segmentation
from leanbayes.ordering.unit import units
from leanbayes.recipes.catalogue import find
from leanbayes.recipes.jobs import Jobs
from leanbayes.recipes.segmentation import networks
from leanbayes.recipes.segmentation.lung_segmentation import PAPER, SETUPS
from leanbayes.recipes.segmentation.networks import compared, interval, measured, some
from leanbayes.recipes.training import Training


def test_all_models_see_the_same_slices_for_as_many_steps() -> None:
    for preset in ("smoke", "cpu", "paper"):
        cells = list(find("lung-segmentation", preset).load().cells(preset))
        assert len({str(cell.key) for cell in cells}) == len(cells) == 6
    setup = SETUPS["cpu"]
    trained = setup.trainings()
    assert trained["E-UNet"].epochs == setup.members * setup.training.epochs
    assert trained["BN3"].epochs == len(setup.widths) * setup.training.epochs  # the plain ones are among them
    assert 0 < trained["BN3"].plain < trained["BN3"].epochs
    alone = {name: one for name, one in trained.items() if name not in ("BN3", "E-UNet")}
    assert {(one.epochs, one.plain) for one in alone.values()} == {(setup.training.epochs, 0)}
    assert {str((one.widths, one.patients, one.slices, one.lr, one.batch_size)) for one in trained.values()} == {
        str((setup.training.widths, setup.training.patients, setup.training.slices, 5e-3, setup.training.batch_size))
    }


def test_every_member_starts_at_the_share_of_each_class() -> None:
    setup = SETUPS["smoke"]
    for name in ("E-UNet", "P-UNet"):
        short = replace(setup.trainings()[name], epochs=1, lr=1e-12)
        data = short.load()
        share = float(data.train.tensors[1].float().mean())
        model = short.train(0, data)
        said = lb.predict(model, data.test.tensors[0], samples=2).probs[:, 1].mean()
        assert share / 3 < float(said) < 3 * share, name


def test_rows_of_lengths_and_widths_have_the_names_of_the_paper(tmp_path: Path) -> None:
    setup = SETUPS["smoke"]
    jobs = Jobs(tmp_path / "lung-segmentation.smoke")
    rows = measured(setup, "VND-PUNet", jobs, 0)["rows"]
    assert {row["method"] for row in rows} == {"33%-VND-PUNet", "100%-VND-PUNet"} <= set(PAPER)
    assert [row["setting"] for row in rows] == [1, 4, 8, 16] * 2
    assert all(0 <= row["GED"] <= 2 for row in rows)
    again = measured(setup, "VND-PUNet", jobs, 0)["rows"]  # the network is read back
    assert [row["GED"] for row in again] == [row["GED"] for row in rows]
    names = {row["method"] for row in measured(replace(setup, widths=(0.46, 1.0)), "BN3", jobs, 0)["rows"]}
    assert names == {"46%-BN3", "100%-BN3"} <= set(PAPER)


def test_bn3_begins_as_the_plain_unet_and_goes_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = SETUPS["smoke"].trainings()["BN3"]
    data, rates, calls = training.load(), list[float](), list[tuple[bool, int]]()
    fit = lb.fit

    def watched(model: nn.Module, *given: object, **options: Any) -> object:
        calls.append((bool(record.conversions(model)), options["epochs"]))
        schedule = options["scheduler"](torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0))
        for _ in range(options["epochs"]):
            rates.extend(schedule.get_last_lr())
            schedule.optimizer.step()
            schedule.step()
        return fit(model, *given, **options)

    monkeypatch.setattr(lb, "fit", watched)
    checkpoint = tmp_path / "one.checkpoint"
    model = training.train(0, data, checkpoint=checkpoint, resume=True)
    assert calls == [(False, 2), (True, 2)]
    assert rates == [1.0, 0.75, 0.5, 0.25]  # one schedule for all
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".plain"] == []
    order = [unit.steps.of for unit in units(model)]
    assert any(list(of) != sorted(of) for of in order)  # by importance
    again = training.train(0, data)
    images = data.test.tensors[0]
    torch.testing.assert_close(lb.predict(again, images, samples=2).probs, lb.predict(model, images, samples=2).probs)
    lb.save(model, tmp_path / "a.safetensors")
    read = lb.load(tmp_path / "a.safetensors", into=training.network(data))
    assert [unit.steps.of for unit in units(read)] == order


def test_the_rate_of_dropout_is_the_best_one_on_validation_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = SETUPS["smoke"]
    data = setup.training.load()
    trained = {setup.dropout(rate).key(0)["methods"]["down.1.*"]: rate for rate in setup.rates}

    def network(jobs: Jobs, training: Training, seed: int, given: object) -> float:
        return trained[training.key(seed)["methods"]["down.1.*"]]

    def said(setup: object, rate: float, given: DataSet, *rest: object) -> list[dict[str, float]]:
        assert not set(given.test.groups.tolist()) & set(data.test.groups.tolist() + data.train.groups.tolist())
        return [{"GED, unbiased": {0.1: 0.5, 0.3: 0.2, 0.5: 0.4}[rate]}]

    monkeypatch.setattr(networks, "trained_network", network)
    monkeypatch.setattr(networks, "compared", said)
    training, tried = networks.tuned(setup, Jobs(None), 0, data)
    assert training == setup.dropout(0.3)
    assert tried == {
        "rate": 0.3,
        **{f"GED, unbiased, validation, rate {r}": v for r, v in ((0.1, 0.5), (0.3, 0.2), (0.5, 0.4))},
    }


class Noisy(nn.Module):
    """The same output for every image of a call, drawn anew by each sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(1, 2, *x.shape[2:])
        return 5 * drawn.expand(len(x), -1, -1, -1)


def test_each_patient_has_draws_of_its_own() -> None:
    data, model = load("blobs"), Noisy()
    masks = data.test.tensors[1]
    same = torch.arange(2)[:, None].expand(-1, 3).flatten()  # two patients with three slices each
    part = Part(data.test.tensors[0][:1].expand(6, -1, -1, -1), masks[:1].expand(6, -1, -1, -1), groups=same)
    record.ensure(model).likelihood = Segmentation().to_dict()
    found = compared(SETUPS["smoke"], model, replace(data, parts={"test": part}), 0, all_said=False)
    assert found[-1]["GED, unbiased, low"] < found[-1]["GED, unbiased, high"]  # the images are all the same


class Copy(nn.Module):
    """Says what one annotator said, which it reads from the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([-20 * x, 20 * x], 1)


def test_a_model_that_agrees_with_all_experts_is_at_distance_zero() -> None:
    data = load("blobs")
    masks = data.test.tensors[1][:, :1].expand(-1, 4, -1, -1)
    part = Part(masks[:, :1].float() - 0.5, masks, groups=data.test.groups)
    model = Copy()
    record.ensure(model).likelihood = Segmentation().to_dict()
    found = compared(SETUPS["smoke"], model, replace(data, parts={"test": part}), 0, all_said=True)
    assert [row["setting"] for row in found] == [16]
    assert found[0]["GED"] == found[0]["GED, unbiased"] == 0
    assert found[0]["Dice of the mean"] == 1


def test_intervals_resample_patients() -> None:
    values, groups = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([5, 5, 9, 9])
    found = interval(values, groups, 400)
    assert found == {"GED, unbiased, low": 0, "GED, unbiased, high": 1}  # either patient twice is likely


def test_slices_are_spread_over_a_scan() -> None:
    part = Part(torch.arange(20), groups=torch.arange(20) // 10)
    assert some(part, 1, 2).tensors[0].tolist() in ([0, 5], [10, 15])
    assert len(some(part, None, None)) == 20
    with pytest.raises(AssertionError):
        some(Part(torch.arange(3)), 1, 1)
