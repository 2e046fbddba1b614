"""An evaluation in stages, each saved once it is done, so that an interrupted one can be resumed.

A stage is a name and a function; its outcome is JSON and a few tensors. After every stage all outcomes so far are
written to one file, atomically (safetensors and JSON, no pickle).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import batches, container, feed, files
from .._version import __version__
from ..errors import ArtifactError
from ..fingerprint import add_bytes, add_tensor, leaves
from .structure import structure

LOOKED_AT = 32
"""How many data at the start of a set are compared before any work is done."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a stage: plain values, and tensors of a few scalars per point."""

    values: dict[str, Any]
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)


class Watched(batches.Watching):
    """Data that must be the same, to the last value and batch, every time they are read; an ArtifactError if they are
    not.

    name: for the message. Its ``digest`` is None until they have been read once.

    >>> data = Watched([torch.zeros(2), torch.ones(1)], "test data")
    >>> len(list(data)), data.digest is None
    (2, False)
    >>> data.watched[1][0] = 3
    >>> list(data)
    Traceback (most recent call last):
    leanbayes.errors.ArtifactError: resume: test data: expected the same data every time ...
    """

    def __init__(self, watched: Any, name: str) -> None:
        self.watched, self.name = watched, name
        self._marks: list[str] = []  # digests up to each batch
        self._whole = False

    def __iter__(self) -> Iterator[Any]:
        digest, count = hashlib.blake2b(digest_size=16), 0
        for batch in feed.stream(self.watched):
            for name, value in leaves(batch, ""):
                shape = tuple(value.shape) if isinstance(value, Tensor) else ()
                dtype = value.dtype if isinstance(value, (Tensor, np.ndarray, np.generic)) else ""
                digest.update(f"{name} {dtype} {shape};".encode())
                add_bytes(digest, value)
            mark = digest.hexdigest()
            if count < len(self._marks) or self._whole:
                if self._marks[count : count + 1] != [mark]:
                    raise self._changed(count)
            else:
                self._marks.append(mark)
            count += 1
            yield batch
        if count < len(self._marks):
            raise self._changed(count)
        self._whole = True

    @property
    def digest(self) -> list[Any] | None:
        """How many batches there are, and a digest of them all."""
        return [len(self._marks), self._marks[-1] if self._marks else ""] if self._whole else None

    def verify(self, digest: Any, path: Any) -> None:
        """Read the data, and raise an ArtifactError if they are not those of the file."""
        for _ in self:
            pass
        if self.digest != digest:
            raise ArtifactError(
                f"resume: {path} belongs to another evaluation, its {self.name} differ somewhere behind the first "
                f"{LOOKED_AT}, or come in other batches; delete the file to start anew, or choose another path"
            )

    def _changed(self, batch: int) -> ArtifactError:
        return ArtifactError(
            f"resume: {self.name}: expected the same data every time they are read, received others in batch "
            f"{batch} (from 0); take out shuffle=True and random transformations, or evaluate without resume="
        )


class Stages:
    """Runs each stage once, over all runs of the same evaluation.

    path: the file; None to save nothing. identity: JSON values that identify the evaluation; a file with others is
    refused before any work is done. data: all data that stages read. The file has a digest of the data that finished
    stages have read; resuming reads these data once, without the model, to compare the digest. The file is kept at the
    end, so that the same call returns the saved result; delete it when the result is saved elsewhere.

    >>> stages = Stages(None, {})
    >>> stages.once("first", lambda: Outcome({"a": 1})).values
    {'a': 1}
    >>> stages.once("first", lambda: Outcome({"a": 2})).values  # it is done already
    {'a': 1}
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, identity: dict[str, Any], data: Collection[Watched] = ()
    ) -> None:
        self.path = None if path is None else Path(files.name_of(path))
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))  # as it will be read back: tuples are lists
        self.outcomes: dict[str, Outcome] = {}
        self.data = data
        if self.path is None:
            return
        files.check_target(self.path)
        if not self.path.exists():
            self._write()  # a path that cannot be written is found now, not after an hour
            return
        self.outcomes, digests = _read(self.path, self.identity, [source.name for source in data])
        for source in data:
            if source.name in digests:
                source.verify(digests[source.name], self.path)

    def once(self, name: str, work: Callable[[], Outcome]) -> Outcome:
        """The outcome of a stage: read from the file, or computed and saved."""
        if name not in self.outcomes:
            self.outcomes[name] = work()
            self._write()
        return self.outcomes[name]

    def done(self, name: str) -> bool:
        """Whether a stage is finished."""
        return name in self.outcomes

    def _write(self) -> None:
        if self.path is None:
            return
        tensors = {
            f"{stage}/{key}": t.contiguous() for stage, o in self.outcomes.items() for key, t in o.tensors.items()
        }
        stages = {stage: {"values": o.values, "tensors": list(o.tensors)} for stage, o in self.outcomes.items()}
        # As text: a metric may be NaN, for which the JSON of the header has no word, and floats keep their last bit.
        digests = {source.name: source.digest for source in self.data if source.digest is not None}
        document = {"evaluation": {"identity": self.identity, "digests": digests, "stages": json.dumps(stages)}}
        files.write_bytes(self.path, container.pack(tensors, {"leanbayes": __version__, **document}))


def identity(
    model: nn.Module, likelihood: nn.Module, options: dict[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Values that identify an evaluation: digests of model, likelihood and data, the options, and versions.

    data: loaders by name; only the first batch of each is read.
    """
    return {
        "model": model_digest(model),
        "structure": structure(model),
        "task": f"{likelihood.task} {likelihood}",
        "likelihood": [model_digest(likelihood), structure(likelihood)],
        "options": options,
        "data": {name: [feed.length(source), start(source)] for name, source in data.items()},
        "versions": {"leanbayes": __version__, "torch": str(torch.__version__)},
    }


def start(data: Any) -> str | None:
    """A digest of the first data of a set, without reading the rest; None if the set is empty.

    >>> start((torch.zeros(2, 3), torch.tensor([0, 1])))
    '64fade6733611d4b'
    """
    first = next(iter(feed.stream(data)), None)
    if first is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for name, value in leaves(batches.rows(first, 0, LOOKED_AT), "", keys_only=True):
        digest.update(name.encode())
        if isinstance(value, Tensor):
            add_tensor(digest, value)
        else:
            add_bytes(digest, value)
    return digest.hexdigest()


def model_digest(model: nn.Module) -> str:
    """A digest of the names and values of all parameters and buffers.

    >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> model_digest(a) == model_digest(a), model_digest(a) == model_digest(b)
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name}:".encode())
        if isinstance(tensor, Tensor):
            add_tensor(digest, tensor)
        else:  # extra state of a user's own module
            digest.update(repr(tensor).encode())
    return digest.hexdigest()


def _read(path: Path, identity: dict[str, Any], names: Collection[str]) -> tuple[dict[str, Outcome], dict[str, Any]]:
    """The outcomes in a file, and the digests of their data. names: of the data of this evaluation."""
    tensors, document = container.read(path)
    found = document.get("evaluation")
    if not isinstance(found, dict) or not isinstance(found.get("identity"), dict):
        raise ArtifactError(
            f"resume: expected a file that evaluate(..., resume=...) wrote, {path} is another file of leanbayes; "
            f"choose a path of its own"
        )
    older = "digests" not in found  # of version 0.1, which looked at the start of the data, and not at the code
    _same(found["identity"], identity, path, ("structure", "likelihood") if older else ())
    if older:
        return {}, {}  # its record cannot prove that it is the same evaluation
    try:
        stages, digests = json.loads(found["stages"]), dict(found["digests"])
        outcomes = {name: _outcome(name, stage, tensors) for name, stage in stages.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"resume: {path} is damaged ({type(error).__name__}); delete it and start anew") from error
    seen = {name if name in names else "test data" for name in outcomes if name != "cost"}
    if names and (unknown := seen - digests.keys()):
        raise ArtifactError(
            f"resume: {path} is damaged: it has no digest of the {min(unknown)} that its stages have seen; "
            f"delete it and start anew"
        )
    return outcomes, digests


def _outcome(name: str, stage: dict[str, Any], tensors: dict[str, Tensor]) -> Outcome:
    if not isinstance(stage["values"], dict) or not isinstance(stage["tensors"], list):
        raise TypeError("expected a mapping of values and the names of tensors")
    return Outcome(stage["values"], {key: tensors[f"{name}/{key}"] for key in stage["tensors"]})


_NOT_SHOWN = {"structure": "a module (its class, options, hooks or code)", "model": "model", "likelihood": "likelihood"}


def _same(saved: dict[str, Any], current: dict[str, Any], path: Path, without: Collection[str]) -> None:
    """Refuse the file of another evaluation; the error says what differs."""
    for part in ("versions", "model", "structure", "task", "likelihood", "options", "data"):
        if part in without or saved.get(part) == current.get(part):
            continue
        label = _NOT_SHOWN.get(part, part)
        old, new = saved.get(part), current.get(part)
        if isinstance(old, dict) and isinstance(new, dict):
            key = next(k for k in [*new, *old] if old.get(k) != new.get(k))
            label, old, new = (
                f"{label}: {key!r}" if part in _NOT_SHOWN else f"{part}: {key}",
                old.get(key),
                new.get(key),
            )
        values = "" if part in _NOT_SHOWN else f" ({_short(old)} there, {_short(new)} here)"
        shuffled = "; data in another order at every run (shuffle=True) cannot be resumed" if part == "data" else ""
        raise ArtifactError(
            f"resume: {path} belongs to another evaluation, its {label} differs{values}{shuffled}; "
            f"delete the file to start anew, or choose another path"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
