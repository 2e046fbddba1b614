"""Saving and loading: exact round trips, and nothing touched when a file or a model does not fit."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import leanbayes as lb
from leanbayes import artifacts, container
from leanbayes.convert import record
from leanbayes.errors import ArtifactError
from leanbayes.registry import methods


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 3)
        self.register_buffer("scratch", torch.randn(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


class Tied(nn.Module):
    """Two modules that share a parameter, and one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.again = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.b(self.a(x).relu()))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


INPUTS = {ConvNet: (5, 2, 4, 4), mlp: (5, 4), Tied: (5, 4)}


def stir(model: nn.Module) -> None:
    """Values that no initialisation gives."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.1)


def answer(model: nn.Module, x: Tensor) -> Tensor:
    return lb.predict(model, x, samples=3, seed=7, task="classification").probs


def snapshot(model: nn.Module) -> tuple[object, ...]:
    """Everything a failed load could have changed: structure, identity, values, record, random state."""
    tensors = {n: (id(t), t._version, t.detach().clone()) for n, t in model.state_dict(keep_vars=True).items()}
    modules = [(n, id(m), m.training, sorted(vars(m)), sorted(m._buffers)) for n, m in model.named_modules()]
    return modules, copy.copy(record.get(model)), tensors, torch.get_rng_state()


def same(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    tensors, others = before[2], after[2]
    assert isinstance(tensors, dict)
    assert isinstance(others, dict)
    return (
        before[:2] == after[:2]
        and tensors.keys() == others.keys()
        and all(t[:2] == others[n][:2] and torch.equal(t[2], others[n][2]) for n, t in tensors.items())
        and torch.equal(before[3], after[3])  # type: ignore[arg-type]
    )


def refused(path: object, model: nn.Module, match: str | None = None) -> None:
    before = snapshot(model)
    with pytest.raises(ArtifactError, match=match):
        lb.load(path, into=model)  # type: ignore[arg-type]
    assert same(before, snapshot(model))


def rewritten(path: Path, target: Path, **changes: object) -> Path:
    """A file with another document and a digest that is right for it."""
    tensors, document = container.read(path)
    target.write_bytes(container.pack(tensors, {**document, "digest": "0" * 64, **changes}))
    return target


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = mlp()
    lb.bayesianize_(model, {"0": lb.MeanField(), "2": lb.VariationalDropout()})
    record.ensure(model).likelihood = {"kind": "Classification", "version": 1}
    return lb.save(model, tmp_path / "model.safetensors", metadata={"name": "ü", "depth": [1, 2]})


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


def test_foreign_and_future_files(saved, tmp_path):
    model = mlp()
    bare = tmp_path / "bare.safetensors"
    save_file({"weight": torch.ones(2)}, bare, metadata={"format": "pt"})
    refused(bare, model, "not one that leanbayes.save wrote")
    torch.save(model.state_dict(), tmp_path / "a.pt")
    refused(tmp_path / "a.pt", model, "pickle .* can run any code")
    torch.save(model.state_dict(), tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "b.pt", model, "pickle")
    future = rewritten(saved, tmp_path / "f.safetensors", version=2, leanbayes="9.0")
    refused(future, model, r"newer leanbayes \(9.0")
    with pytest.raises(ArtifactError, match="newer"):
        artifacts.inspect(future)
    refused(tmp_path / "absent", model, "readable")
    refused(tmp_path, model, "readable")
    refused(None, model, "path")
    refused("a\0b", model, "path")


@pytest.mark.parametrize(
    "changes",
    [
        {"conversions": {"0": {"kind": "Sorcery", "version": 1}}},
        {"conversions": {"0": {"kind": "MeanField", "version": 99}}},
        {"conversions": {"0": {"kind": "Normal", "version": 1}}},
        {"conversions": {"0": {"kind": "MeanField", "std": -1.0}}},
        {"conversions": {"0": {"kind": ["MeanField"]}}},
        {"conversions": {"9": {"kind": "MeanField"}}},
        {"conversions": {"": {"kind": "MeanField"}}},
        {"conversions": {}},
        {"conversions": []},
        {"aliases": {"x": "nowhere"}},
        {"aliases": {"x": ["0.posteriors.weight.rho"]}},
        {"aliases": {"x": "0.posteriors.weight.rho"}},
        {"aliases": None},
        {"likelihood": {"kind": ["Classification"]}},
        {"likelihood": {"kind": "Regression", "std": -1}},
        {"likelihood": 3},
        {"format": "other"},
        {"version": True},
        {"version": "1"},
        {"version": 0},
    ],
    ids=str,
)
def test_documents_that_make_no_sense(changes, saved, tmp_path):
    refused(rewritten(saved, tmp_path / "x.safetensors", **changes), mlp())


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}",
        b"[]",
        b'{"__metadata__": 3}',
        b'{"__metadata__": {"leanbayes": "[[["}}',
        b'{"__metadata__": {"leanbayes": 3}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 99999999999999]}}',
        b"\xff\xfe",
        b"9" * 5000,
    ],
    ids=range(10),
)
def test_hostile_headers(header, tmp_path):
    path, model = tmp_path / "x.safetensors", mlp()
    for size in (len(header), 2**63, 2**64 - 1, 0, 10**8 + 1):
        path.write_bytes(size.to_bytes(8, "little") + header)
        refused(path, model)
        with pytest.raises(ArtifactError):
            artifacts.inspect(path)


def test_every_truncation_is_refused(saved):
    data, model = saved.read_bytes(), mlp()
    for length in range(0, len(data), 29):
        saved.write_bytes(data[:length])
        refused(saved, model)
    saved.write_bytes(data + b"\0")
    refused(saved, model)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7), in_header=st.booleans())
def test_every_flipped_bit_is_noticed(saved, at, bit, in_header):
    data = bytearray(container.pack(*container_of(saved)))
    at %= 8 + int.from_bytes(data[:8], "little") if in_header else len(data)
    data[at] ^= 1 << bit
    damaged = saved.with_name("damaged.safetensors")
    damaged.write_bytes(data)
    refused(damaged, MODEL)
    with contextlib.suppress(ArtifactError):
        artifacts.inspect(damaged)


MODEL = mlp()


def container_of(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    tensors, document = container.read(path)
    return tensors, {**document, "digest": "0" * 64}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), framed=st.booleans())
def test_random_bytes_are_refused(tmp_path, data, framed):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(data).to_bytes(8, "little") + data if framed else data)
    refused(path, MODEL)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["MeanField", "Regression"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "version", "0", "std", "conversions", "aliases"]), inner)
        ),
        max_leaves=12,
    ),
    key=st.sampled_from(["conversions", "aliases", "likelihood"]),
)
def test_random_documents_never_half_convert(saved, tmp_path, document, key):
    path = rewritten(saved, tmp_path / "x.safetensors", **{key: document})
    if key == "aliases" and document == {}:
        return
    if key == "likelihood" and document is None:
        return
    refused(path, MODEL)


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
