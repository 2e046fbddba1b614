"""The kinds of files that the library reads: how to make one, how to forge one, what reads it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import pickle
import random
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import savemat
from torch import nn

import leanbayes as lb
from leanbayes import artifacts, container
from leanbayes.cli import inputs, saved
from leanbayes.data import read_cifar, read_idx, read_lidc, read_svhn, read_uci
from leanbayes.data.npz import read_npy
from leanbayes.recipes import jobs

from ..data.conftest import cifar_batch, idx_bytes, write_uci
from ..snapshots import snapshot
from .forge import STRANGE, bytes_mutated, text_mutated, value_mutated

# Readers that are known to let these errors of Python's through; each is counted in the notes of a run.
LET_THROUGH: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Kind:
    """name: of the file. forge: a forged one. read: reads it. context: what it is read into; state: what that holds."""

    name: str
    forge: Callable[[random.Random], bytes]
    read: Callable[[Path, Any], Any]
    context: Callable[[Path], Any] = lambda path: None
    state: Callable[[Any], Any] = lambda context: None


def network() -> nn.Module:
    """What artifacts hold, before it is converted."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


METHODS: list[Any] = [
    lb.MeanField(), lb.VariationalDropout(), lb.Ensemble(members=3), lb.Patch(components=3), lb.SparseSubspace(),
    lb.Nested(groups=2, base_groups=1), lb.Dropout(),
]  # fmt: skip


@functools.cache
def artifact(turn: int) -> bytes:
    """A saved model, as `leanbayes train` saves it."""
    from leanbayes.models import build

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        if turn == len(METHODS):
            model = build("mlp", in_features=4, hidden=[6], out_features=3)
            lb.bayesianize_(model, lb.MeanField())
            options = {"in_features": 4, "hidden": [6], "out_features": 3}
            training = {
                "data": "uci/yacht", "split": 0, "network": {"name": "mlp", "options": options}, "seed": 0,
                "input_shape": [4], "classes": ["a", "b", "c"], "mean": [0.0] * 4, "std": [1.0] * 4, "y_mean": 0.0,
                "y_std": 1.0,
            }  # fmt: skip
            return lb.save(model, path, task="classification", metadata={"training": training}).read_bytes()
        model = network()
        lb.bayesianize_(model, METHODS[turn])
        return lb.save(model, path, task="classification", metadata={"name": "x"}).read_bytes()


def with_digest(data: bytes) -> bytes:
    """The file with a digest that is right for what it holds now."""
    at = data.find(b'digest\\": \\"') + len(b'digest\\": \\"')
    blank = data[:at] + b"0" * 64 + data[at + 64 :]
    return data[:at] + hashlib.blake2b(blank, digest_size=32).hexdigest().encode() + data[at + 64 :]


def forged_container(data: bytes, chance: random.Random) -> bytes:
    """Damaged bytes, or a document, a header or tensors that were changed by somebody who knows of the digest."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    way = chance.randrange(5)
    if way == 0:
        return bytes_mutated(data, chance)
    if way == 1:
        return with_digest(bytes_mutated(data, chance))
    if way == 2:
        tensors = {k: v for k, v in header.items() if k != "__metadata__"}
        text = json.dumps({"__metadata__": header["__metadata__"], **value_mutated(tensors, chance)}).encode()
    elif way == 3:
        document = json.loads(header["__metadata__"]["leanbayes"])
        first = {"digest": "0" * 64}
        changed = {**first, **value_mutated({k: v for k, v in document.items() if k != "digest"}, chance)}
        text = json.dumps({**header, "__metadata__": {"leanbayes": json.dumps(changed)}}).encode()
    else:
        values = np.frombuffer(bytearray(data[8 + size :]), np.uint8).copy()
        strange = np.array([np.nan, np.inf, -np.inf, 1e38], np.float32).view(np.uint8).reshape(4, 4)
        for _ in range(chance.choice([1, 10])):
            at = 4 * chance.randrange(len(values) // 4)
            values[at : at + 4] = strange[chance.randrange(4)]
        return with_digest(data[: 8 + size] + values.tobytes())
    text += b" " * (-len(text) % 8)
    return with_digest(len(text).to_bytes(8, "little") + text + data[8 + size :])


def load(path: Path, model: nn.Module) -> None:
    """Both ways to look at a file, and all it says of its training."""
    artifacts.inspect(path)
    lb.load(path, into=model)


DATA = torch.arange(80.0).view(20, 4).sin(), torch.arange(20) % 3


@functools.cache
def evaluation() -> bytes:
    """The file of an evaluation that is done."""
    with tempfile.TemporaryDirectory() as folder:
        resumed(Path(folder) / "a", network())
        return (Path(folder) / "a").read_bytes()


def resumed(path: Path, model: nn.Module) -> lb.Evaluation:
    """An evaluation with a file."""
    ood = {"other": DATA[0] + 5}
    options: dict[str, Any] = {"task": "classification", "samples": 1, "replicates": 3, "progress": False}
    return lb.evaluate(model, DATA, resume=path, ood=ood, **options)


@functools.cache
def report() -> Any:
    """The JSON form of an evaluation."""
    options: dict[str, Any] = {"task": "classification", "samples": 1, "replicates": 3, "progress": False}
    return lb.evaluate(network(), DATA, **options).to_dict()


@functools.cache
def idx(zipped: bool) -> bytes:
    """Labels and images."""
    data = idx_bytes(np.arange(600, dtype=np.uint8).reshape(3, 10, 20))
    return gzip.compress(data, mtime=0) if zipped else data


@functools.cache
def batch(protocol: int) -> bytes:
    """A batch of CIFAR."""
    return pickle.dumps(cifar_batch(4), protocol=protocol)


@functools.cache
def archive(zipped: bool) -> bytes:
    """A batch in an archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz" if zipped else "w") as file:
        info = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        info.size = len(batch(2))
        file.addfile(info, io.BytesIO(batch(2)))
    return made.getvalue()


@functools.cache
def matlab(packed: bool) -> bytes:
    """Pictures of house numbers."""
    made = io.BytesIO()
    images = np.arange(32 * 32 * 3 * 2).reshape(32, 32, 3, 2).astype(np.uint8)
    savemat(made, {"X": images, "y": np.array([[1], [10]], np.uint8)}, do_compression=packed)
    return made.getvalue()


@functools.cache
def npz(packed: bool) -> bytes:
    """Lung nodules."""
    made = io.BytesIO()
    arrays = {"images": np.zeros((2, 64, 64), np.uint8), "masks": np.zeros((2, 4, 64, 64), bool)}
    (np.savez_compressed if packed else np.savez)(made, **arrays, patient=np.array([1, 2]))
    return made.getvalue()


@functools.cache
def npy() -> bytes:
    """A few numbers."""
    made = io.BytesIO()
    np.save(made, np.arange(12.0).reshape(3, 4))
    return made.getvalue()


def table(path: Path) -> None:
    """The files beside data.txt."""
    content = path.read_bytes()
    write_uci(path.parent)
    path.write_bytes(content)


@functools.cache
def numbers() -> bytes:
    """The text of a table."""
    with tempfile.TemporaryDirectory() as folder:
        write_uci(Path(folder))
        return (Path(folder) / "data.txt").read_bytes()


KEY = {"method": "mean-field", "seed": 0}


def piece(path: Path, context: Any) -> None:
    """A finished piece of a recipe, read in place of work."""
    run = jobs.Jobs(path.parent)
    path.rename(path.parent / f"{jobs._encoded(KEY)[1]}.json")
    try:
        run(KEY, lambda: {"accuracy": 0.5})
    finally:
        next(path.parent.glob("*.json")).rename(path)


def _mutated(make: Callable[[Any], bytes], choices: list[Any]) -> Callable[[random.Random], bytes]:
    return lambda chance: bytes_mutated(make(chance.choice(choices)), chance)


def _table_mutated(chance: random.Random) -> bytes:
    words = numbers().split(b" ")
    for _ in range(chance.choice([1, 3])):
        strange = [b"nan", b"inf", b"1e999", b"x", b"#", b"\n", b"", b"0x1", b"1" * 10_000, b"\xff", b"1,2", b"\0"]
        words[chance.randrange(len(words))] = chance.choice(strange)
    return bytes_mutated(b" ".join(words), chance) if chance.random() < 0.5 else b" ".join(words)


_PIECE = {"key": KEY, "seconds": 1.5, "metrics": {"accuracy": 0.5, "nll": "inf"}}
_MODEL: dict[str, Any] = {"context": lambda path: network(), "state": snapshot}
KINDS = {
    "artifact": Kind(
        "a.safetensors", lambda c: forged_container(artifact(c.randrange(len(METHODS))), c), load, **_MODEL
    ),
    "trained model": Kind(
        "b.safetensors", lambda c: forged_container(artifact(len(METHODS)), c), lambda p, _: saved.open_model(p, None)
    ),
    "evaluation": Kind("a.eval", lambda c: forged_container(evaluation(), c), resumed, **_MODEL),
    "idx": Kind("a-idx", _mutated(idx, [False, True]), lambda p, _: read_idx(p)),
    "cifar": Kind("test_batch", _mutated(batch, [0, 2, 4, 5]), lambda p, _: read_cifar(p.parent, [p.name])),
    "archive": Kind("a.tar.gz", _mutated(archive, [False, True]), lambda p, _: read_cifar(p, ["test_batch"])),
    "matlab": Kind("a.mat", _mutated(matlab, [False, True]), lambda p, _: read_svhn(p)),
    "npz": Kind("a.npz", _mutated(npz, [False, True]), lambda p, _: read_lidc(p)),
    "npy": Kind("a.npy", lambda c: bytes_mutated(npy(), c), lambda p, _: read_npy(p)),
    "inputs of predict": Kind("b.npy", lambda c: bytes_mutated(npy(), c), lambda p, _: inputs.read(p)),
    "uci": Kind("data.txt", _table_mutated, lambda p, _: read_uci(p.parent), table),
    "report": Kind("a.json", lambda c: text_mutated(report(), c), lambda p, _: lb.Evaluation.load_json(p)),
    "recipe piece": Kind("b.json", lambda c: text_mutated(_PIECE, c), piece),
}


@functools.cache
def by_hand(kind: str) -> list[bytes]:
    """Files that were made up for one weakness each."""
    from ..data import test_forged as data

    match kind:
        case "cifar":
            return list(data.PICKLES.values())
        case "archive":
            return list(data.archives().values())
        case "matlab":
            return [make() for make in data.MATLAB.values()]
        case "npy" | "inputs of predict":
            return list(data.NPY.values())
        case "idx":
            return [b"\0\0\x08\x03" + b"\xff" * 12, b"\0\0\x08\xff" + b"\0" * 1020, gzip.compress(bytes(10**8))]
        case "artifact" | "trained model":
            tensors, document = _read(artifact(0 if kind == "artifact" else len(METHODS)))
            wholes = [{**document, "digest": "0" * 64, **change} for change in _changes(document)]
            made = [container.pack(tensors, whole) for whole in wholes]
            header = b'{"__metadata__": {"leanbayes": "' + b"[]," * 5_000_000 + b'"}}'
            deep = b"[" * 10**7
            return made + [len(text).to_bytes(8, "little") + text for text in (header, deep, b"{}", b'{"a": {}}')]
    return []


def _changes(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Documents that ask for more than a file holds, or say what no training says."""
    layers = document["conversions"]
    huge = [{"kind": "Ensemble", "members": 1000}, {"kind": "Patch", "components": 1000}]
    huge += [{"kind": "Nested", "groups": n} for n in (10**5, 10**9)]
    changes: list[dict[str, Any]] = [{"conversions": dict.fromkeys(layers, method)} for method in huge]
    changes += [{"temperatures": {"a": bad}} for bad in (0, -1, 1e400, True, None)]
    changes += [{"sliced": {"0": bad}} for bad in ({"in_features": 10**9}, {"in_features": -1}, 3, {"x": 1})]
    if (training := document["metadata"].get("training")) is not None:
        for field in training:
            changes += [{"metadata": {"training": {**training, field: bad}}} for bad in STRANGE[3:12]]
        wide = [("mlp", {"in_features": 4, "hidden": [10**5] * 3, "out_features": 3})]
        wide += [
            ("resnext_cifar", {"depth": 10**6}),
            ("mlp", {"in_features": 4, "hidden": [9] * 10**5, "out_features": 3}),
        ]
        networks = [{"name": name, "options": options} for name, options in wide]
        changes += [{"metadata": {"training": {**training, "network": network}}} for network in networks]
        changes += [{"metadata": {"training": {**training, "std": bad}}} for bad in ([0.0] * 4, [1.0], [1e-300] * 4)]
    return [
        change for change in changes if "Infinity" not in json.dumps(change) and '"\\ud800"' not in json.dumps(change)
    ]


def _read(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(data)
        return container.read(path)
