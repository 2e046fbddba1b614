"""Files that are foreign, from the future, damaged or random are refused as a whole."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import save_file
from torch import Tensor

from leanbayes import artifacts, container
from leanbayes.errors import ArtifactError

from .saving import mlp, refused, rewritten


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
