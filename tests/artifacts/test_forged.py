"""Files of models that were forged by somebody who knows of the digest, and places that must not be written to."""

from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import artifacts, container
from leanbayes.cli.saved import open_model
from leanbayes.errors import ArtifactError, PredictionError
from leanbayes.models import build

from ..snapshots import snapshot
from ..soak.file_kinds import with_digest


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def forged(path: Path, tensors: dict[str, Any] | None = None, **changes: Any) -> Path:
    """The file with another document or other tensors, and a digest that is right for them."""
    found, document = container.read(path)
    whole = container.pack({**found, **(tensors or {})}, {**document, "digest": "0" * 64, **changes})
    (target := path.with_name("forged.safetensors")).write_bytes(whole)
    return target


def refused(match: str, path: Path, model: nn.Module | None = None) -> None:
    model = mlp() if model is None else model
    before = snapshot(model)
    with pytest.raises(ArtifactError, match=match):
        lb.load(path, into=model)
    assert snapshot(model) == before


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = mlp()
    lb.bayesianize_(model, lb.MeanField())
    return lb.save(model, tmp_path / "a.safetensors", task="classification")


@pytest.mark.parametrize(
    "kind", [{"kind": "Ensemble", "members": 1000}, {"kind": "Patch", "components": 1000}], ids=str
)
def test_methods_that_ask_for_more_than_the_file_holds(kind, tmp_path):
    wide = nn.Sequential(nn.Linear(500, 1000), nn.ReLU(), nn.Linear(1000, 10))
    path = lb.save(wide, tmp_path / "a.safetensors")
    path = forged(path, conversions={"0": kind, "2": kind})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused("the file contradicts itself|the file holds", path, wide)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200 * 2**10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(saved, value):
    name = "2.posteriors.weight.loc"
    weight = container.read(saved)[0][name].clone()
    weight[1, 2] = value
    path = forged(saved, {name: weight})
    refused(f"{name}: expected finite numbers, received {value} in 1 of 18", path)
    model = lb.load(path, into=mlp(), allow_nonfinite=True)
    assert torch.equal(model[2].posteriors["weight"].loc.isfinite(), weight.isfinite())


def test_logarithms_of_zero_and_masks_may_be_infinite(saved, tmp_path):
    name = "2.posteriors.weight.rho"
    rho = container.read(saved)[0][name].clone()
    rho[0, 0] = -float("inf")
    assert lb.load(forged(saved, {name: rho}), into=mlp())[2].posteriors["weight"].std[0, 0] == 0
    rho[0, 0] = float("inf")
    refused("received inf", forged(saved, {name: rho}))

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mask", torch.full((3, 3), -float("inf")).triu(1))

    model = Masked()
    path = lb.save(model, tmp_path / "masked.safetensors")
    assert torch.equal(lb.load(path, into=Masked()).mask, model.mask)
    refused("mask: expected finite", forged(path, {"mask": torch.full((3, 3), -float("inf"))}), Masked())


TRAINING: dict[str, Any] = {
    "data": "digits",
    "split": 0,
    "network": {"name": "mlp", "options": {"in_features": 4, "hidden": [6], "out_features": 3}},
    "seed": 0,
    "input_shape": [4],
    "classes": ["a", "b", "c"],
    "mean": [0.0, 0.0, 1.0, 2.0],
    "std": [1.0, 1.0, 0.5, 2.0],
    "y_mean": 0.0,
    "y_std": 1.0,
}
WIDE = {"in_features": 4, "hidden": [50_000, 50_000], "out_features": 3}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    model = build("mlp", in_features=4, hidden=[6], out_features=3)
    lb.bayesianize_(model, lb.MeanField())
    return lb.save(model, tmp_path / "a.safetensors", task="classification", metadata={"training": TRAINING})


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a", "b"]}, {"classes": "abc"}, {"classes": [1, 2, 3]}, {"classes": []},
        {"mean": [0.0]  * 3}, {"mean": ["0"] * 4}, {"mean": 0.0}, {"mean": []},
        {"std": [0.0] * 4}, {"std": [-1.0] * 4}, {"std": [1e-300] * 4}, {"std": [1.0] * 3}, {"std": [10**400] * 4},
        {"input_shape": [-4]}, {"input_shape": [10**12]}, {"input_shape": []}, {"input_shape": "4"},
        {"input_shape": [[4]]}, {"split": -1}, {"seed": 1.5}, {"y_std": 0}, {"y_std": -1.0}, {"y_mean": "x"},
        {"data": 3}, {"network": {"name": 3, "options": {}}}, {"network": {"name": "mlp"}}, {"network": "mlp"},
        {"network": {"name": "mlp", "options": []}}, {"network": {"name": "unknown", "options": {}}},
        {"network": {"name": "mlp", "options": WIDE}}, {"network": {"name": "mlp", "options": {"width": 3}}},
        {"network": {"name": "mlp", "options": {**WIDE, "hidden": [6] * 10**4}}},
        {"network": {"name": "resnext_cifar", "options": {"depth": 9 * 10**5 + 2}}},
        {"network": {"name": "resnet18", "options": {"width": 10**4}}},
        {"preparation": 3},
        {"preparation": {"kind": "Normal", "version": 1}},
        {"preparation": {"kind": "Preparation", "version": 1, "source": "array", "task": "regression",
                         "input_shape": [10**9], "mean": [0.0], "std": [1.0]}},
        {"val_fraction": 2},
        {"test_fraction": "half"},
    ],
    ids=str,
)  # fmt: skip
def test_what_training_never_writes(change, trained):
    path = forged(trained, metadata={"training": {**TRAINING, **change}})
    for read in (lambda: open_model(path, None), lambda: artifacts.inspect(path)):
        with pytest.raises(ArtifactError, match="training"):
            read()
    refused("training", path)


@pytest.mark.parametrize(
    "change",
    [
        {"conformal": {"kind": "Normal", "version": 1}},
        {"conformal": {"kind": "Conformal", "version": 1, "coverage": 0.9, "score": "lac", "thresholds": ["x"],
                       "counts": [9]}},
        {"conformal": {"kind": "Conformal", "version": 9}},
        {"conformal": 3},
        {"classes": "abc"},
        {"classes": [1, 2, 3]},
    ],
    ids=str,
)  # fmt: skip
def test_thresholds_and_names_that_are_none(change, saved):
    refused("conformal|classes", forged(saved, **change))


def test_class_names_and_thresholds_of_another_number_of_classes_are_not_used(saved):
    """The outputs of a network are known only when it is called: names that do not fit are left out."""
    model = lb.load(forged(saved, classes=["a", "b"]), into=mlp())
    assert lb.predict(model, torch.randn(2, 4), samples=2).classes == ()
    many = {"kind": "Conformal", "version": 1, "coverage": 0.9, "score": "lac", "thresholds": [0.5, 0.5],
            "counts": [9, 9], "samples": 2, "likelihood": "Classification()", "class_conditional": True}  # fmt: skip
    model = lb.load(forged(saved, conformal=many), into=mlp())
    with pytest.raises(PredictionError, match="thresholds for 2 classes, received a prediction of 3"):
        lb.predict(model, torch.randn(2, 4), samples=2).prediction_sets


def test_what_training_writes_is_read(trained):
    assert open_model(trained, None)[1].classes == ["a", "b", "c"]
    free = forged(trained, metadata={"training": {"epochs": 3, "std": "my own"}})
    assert artifacts.inspect(free)["metadata"]["training"]["epochs"] == 3


def header_changed(path: Path, change: Any) -> Path:
    """The file with other entries in the header of safetensors."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = change(json.loads(data[8 : 8 + size]))
    text += b" " * (-len(text) % 8)
    path.write_bytes(with_digest(len(text).to_bytes(8, "little") + text + data[8 + size :]))
    return path


def entry(name: str, **changes: Any) -> Any:
    return lambda header: json.dumps({**header, name: {**header[name], **changes}}).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda header: entry(  # where another tensor lies
            "0.posteriors.bias.loc", data_offsets=header["0.posteriors.bias.rho"]["data_offsets"]
        )(header),
        entry("0.posteriors.bias.loc", shape=[2**40]),
        entry("0.posteriors.bias.loc", shape=[-6]),
        entry("0.posteriors.bias.loc", shape=[6.0]),
        entry("0.posteriors.bias.loc", shape=[True] * 6),
        entry("0.posteriors.bias.loc", dtype="F64"),
        entry("0.posteriors.bias.loc", dtype=["F32"]),
        entry("0.posteriors.bias.loc", data_offsets=[2**63, 2**63 + 24]),
        entry("0.posteriors.bias.loc", data_offsets=None),
        lambda header: json.dumps(header).encode()[:-1] + b', "0.posteriors.bias.loc": {}}',
        lambda header: json.dumps(header).encode()[:-1] + b', "x": {"dtype": "F32", "shape": [0], "data_offsets": []}}',
        lambda header: json.dumps(header).replace('"metadata', '\\"digest\\": 1, \\"metadata').encode(),
        lambda header: json.dumps({k: v for k, v in header.items() if "bias" not in k}).encode(),
    ],
    ids=range(13),
)
def test_headers_that_contradict_the_file(change, saved):
    path = header_changed(saved, change)
    refused("damaged|expected", path)
    with pytest.raises(ArtifactError, match=r"damaged|expected"):
        artifacts.inspect(path)


def test_headers_of_millions_of_values(tmp_path):
    for text in (b'{"a":[' + b"[]," * 4_000_000 + b"[]]}", b'{"a":"' + b"\xf0\x9f\x98\x80" * 5_000_000 + b'"}'):
        (path := tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
        refused("damaged|something else", path)
    with pytest.raises(ArtifactError, match="shorten the metadata"):
        lb.save(nn.Linear(1, 1), tmp_path / "b.safetensors", metadata={"x": [0] * 2_100_000})
    assert not (tmp_path / "b.safetensors").exists()


def test_devices_and_directories_are_never_replaced(saved, tmp_path):
    model, numbers = mlp(), [os.stat(path).st_rdev for path in ("/dev/null", "/dev/full")]
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    for path, kind in {
        "/dev/null": "device", "/dev/full": "device", tmp_path / "link": "device", tmp_path / "pipe": "pipe",
        tmp_path: "directory",
    }.items():  # fmt: skip
        with pytest.raises(ArtifactError, match=f"received a {kind}, which is never replaced"):
            lb.save(model, path)
        with pytest.raises(ArtifactError, match=kind):
            lb.evaluate(model, (torch.randn(4, 4), torch.arange(4) % 3), task="classification", resume=path)
    assert [os.stat(path).st_rdev for path in ("/dev/null", "/dev/full")] == numbers
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_places_that_cannot_be_written_to(tmp_path, monkeypatch):
    model = mlp()
    with pytest.raises(ArtifactError, match="choose a shorter name"):
        lb.save(model, tmp_path / ("a" * 300))
    with pytest.raises(ArtifactError, match="make it first"):
        lb.save(model, tmp_path / "no" / "a")
    with monkeypatch.context() as patch:  # as on a file system that is mounted to be read
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        with pytest.raises(ArtifactError, match="may only be read"):
            lb.save(model, tmp_path / "a.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(ArtifactError, match=r"No space left.*choose a directory with room"):
            lb.save(model, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def _full(handle: int) -> None:
    raise OSError(28, "No space left on device")
