"""Saving and loading: exact round trips, and nothing touched when a file or a model does not fit."""

from __future__ import annotations

import json
import os

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import artifacts
from leanbayes.convert import record
from leanbayes.errors import ArtifactError
from leanbayes.registry import methods

from .saving import INPUTS, ConvNet, Tied, answer, mlp, refused, rewritten, stir


@pytest.mark.parametrize("make", INPUTS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_round_trip_is_exact(method, make, tmp_path):
    if make is Tied and method.follows_channels:
        pytest.skip("a layer that is called twice has no channels to order")
    torch.manual_seed(0)
    model, x = make(), torch.randn(INPUTS[make])
    lb.bayesianize_(model, {nn.Linear: method(), "again": method()} if make is Tied else method())
    stir(model)
    path = lb.save(model, tmp_path / "a.safetensors")
    fresh = make()
    state = torch.get_rng_state()
    assert lb.load(path, into=fresh) is fresh
    assert torch.equal(torch.get_rng_state(), state)
    assert record.conversions(fresh) == record.conversions(model)
    assert torch.equal(answer(fresh, x), answer(model, x))
    assert torch.equal(lb.kl_sum(fresh), lb.kl_sum(model))
    lb.load(path, into=(converted := lb.load(path, into=make())))  # one already converted alike
    assert torch.equal(answer(converted, x), answer(model, x))
    assert lb.save(fresh, tmp_path / "b.safetensors").read_bytes() == path.read_bytes()


def test_configs_likelihood_and_metadata_come_back(saved):
    model = lb.load(saved, into=mlp())
    assert record.get(model).likelihood == {"kind": "Classification", "version": 1}
    assert lb.predict(model, torch.randn(2, 4), samples=2).probs.shape == (2, 3)
    header = artifacts.inspect(saved)
    assert header["metadata"] == {"name": "ü", "depth": [1, 2]}
    assert header["conversions"]["2"]["kind"] == "VariationalDropout"
    assert header["tensors"]["0.posteriors.weight.rho"] == {"dtype": "F32", "shape": [6, 4]}


def test_methods_that_start_afresh_keep_the_random_state(tmp_path):
    model = mlp()
    lb.bayesianize_(model, lb.MeanField(keep_weights=False))
    path = lb.save(model, tmp_path / "a.safetensors")
    fresh, state = mlp(), torch.get_rng_state()
    lb.load(path, into=fresh)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(fresh[0].posteriors["weight"].loc, model[0].posteriors["weight"].loc)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(dtype, tmp_path):
    model = ConvNet().to(dtype)
    lb.bayesianize_(model, lb.MeanField())
    path = lb.save(model, tmp_path / "a.safetensors")
    fresh = lb.load(path, into=ConvNet().to(dtype))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True))
    refused(path, ConvNet(), f"received {dtype}")


class Odd(nn.Module):
    """Strides, no elements, no dimensions, integers, and views of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(3, 4).t())
        self.none = nn.Parameter(torch.empty(0, 3))
        self.none_too = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("flags", torch.tensor([True, False]))
        memory = torch.randn(6)
        self.register_buffer("left", memory[:4])
        self.register_buffer("right", memory[2:])
        self.register_buffer("all", memory)


def test_odd_tensors_of_a_plain_model(tmp_path):
    model = Odd()
    path = lb.save(model, tmp_path / "a.safetensors")
    assert artifacts.inspect(path)["aliases"] == {}
    fresh = lb.load(path, into=Odd())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True))
    assert record.get(fresh) is None
    lb.load(lb.save(nn.ReLU(), path), into=nn.ReLU())  # no tensors at all


def test_wrappers_do_not_show_in_the_names(saved, tmp_path):
    model = lb.load(saved, into=mlp())
    wrapped = nn.DataParallel(torch.compile(model))
    assert lb.save(wrapped, tmp_path / "b.safetensors").exists()
    assert list(artifacts.inspect(tmp_path / "b.safetensors")["conversions"]) == ["0", "2"]
    lb.load(saved, into=wrapped)


def test_a_pruned_model_comes_back_pruned(tmp_path):
    model = Tied()
    lb.bayesianize_(model, lb.MeanField())
    lb.prune_(model, fraction=0.5)
    path = lb.save(model, tmp_path / "a.safetensors")
    fresh = lb.load(path, into=Tied())
    assert torch.equal(fresh.b.posteriors["weight"].keep, model.b.posteriors["weight"].keep)
    x = torch.randn(5, 4)
    assert torch.equal(answer(fresh, x), answer(model, x))
    unpruned = Tied()
    lb.bayesianize_(unpruned, lb.MeanField())
    plain = lb.save(unpruned, tmp_path / "b.safetensors")
    refused(rewritten(path, tmp_path / "c.safetensors", aliases={}), unpruned)  # its mask is not left behind
    refused(plain, fresh, "keep")


def test_models_that_do_not_fit_stay_as_they_are(saved, tmp_path):
    refused(saved, nn.Sequential(nn.Linear(4, 6)), "layer '2'")
    refused(saved, nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)), r"expected shape \(5,")
    refused(saved, nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)), "the file has '0.post")
    refused(saved, nn.Sequential(*mlp(), nn.Linear(3, 3)), "the model has '3.weight'")
    refused(saved, nn.Sequential(nn.LSTM(4, 6), nn.ReLU(), nn.Linear(6, 3)), "LSTM")
    refused(saved, mlp().to(torch.float64), "model.to")
    other = mlp()
    lb.bayesianize_(other, lb.MeanField())
    refused(saved, other, "layer '2': expected VariationalDropout")
    refused(lb.save(mlp(), tmp_path / "plain.safetensors"), other, "restore_")
    with pytest.raises(ArtifactError, match="meta"):
        lb.load(saved, into=mlp().to("meta"))
    with pytest.raises(ArtifactError, match="expected an nn"):
        lb.load(saved, into={})  # type: ignore[arg-type]


def test_ties_must_agree(tmp_path):
    class Untied(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Linear(4, 4)

    tied, untied = lb.save(Tied(), tmp_path / "a.safetensors"), lb.save(Untied(), tmp_path / "b.safetensors")
    assert artifacts.inspect(tied)["aliases"]["b.weight"] == "a.weight"
    refused(tied, Untied(), "tie both or neither")
    refused(untied, Tied(), "tie both or neither")


def test_a_failure_in_the_middle_of_loading_is_undone(saved):
    class Fragile(nn.Linear):
        def _load_from_state_dict(self, *args: object) -> None:
            raise RuntimeError("no")

    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), Fragile(1, 1))
    lb.bayesianize_(model, {"0": lb.MeanField(), "2": lb.VariationalDropout()})
    path = lb.save(model, saved)
    fresh = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), Fragile(1, 1))
    before = [p.detach().clone() for p in fresh.parameters()]
    identity = [id(m) for m in fresh.modules()]
    with pytest.raises(ArtifactError, match="unchanged"):
        lb.load(path, into=fresh)
    assert [id(m) for m in fresh.modules()] == identity
    assert record.get(fresh) is None
    assert all(torch.equal(a, b) for a, b in zip(before, fresh.parameters(), strict=True))


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch):
    old = saved.read_bytes()

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, fail)
            with pytest.raises(ArtifactError, match="No space"):
                lb.save(mlp(), saved)
        assert saved.read_bytes() == old
        assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_what_save_refuses(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"any": object()}

    path = tmp_path / "x.safetensors"
    sparse = nn.ParameterList([nn.Parameter(torch.eye(2).to_sparse())])
    cases = [
        (mlp().to("meta"), {}, "meta"),
        (nn.Sequential(Extra(1, 1)), {}, "0._extra_state"),
        (nn.Sequential(nn.LazyLinear(2)), {}, "run one batch"),
        (sparse, {}, "dense"),
        (mlp(), {"metadata": {"a": object()}}, "JSON"),
        (mlp(), {"metadata": {"a": float("nan")}}, "JSON"),
        (mlp(), {"metadata": {1: 2}}, "text as keys"),
        (mlp(), {"metadata": [1]}, "mapping"),
        (mlp().state_dict(), {}, "nn.Module"),
    ]
    for model, options, match in cases:
        with pytest.raises(ArtifactError, match=match):
            lb.save(model, path, **options)
    with pytest.raises(ArtifactError, match="path"):
        lb.save(mlp(), None)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="directory"):
        lb.save(mlp(), tmp_path / "no" / "x.safetensors")
    assert not path.exists()


def test_metadata_cannot_be_mistaken_for_the_digest(tmp_path):
    text = json.dumps({"digest": "0" * 64})
    path = lb.save(mlp(), tmp_path / "a.safetensors", metadata={"digest": "0" * 64, "0" * 64: text})
    lb.load(path, into=mlp())
    assert artifacts.inspect(path)["metadata"]["digest"] == "0" * 64
