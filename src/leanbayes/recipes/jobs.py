"""Runs the pieces of an experiment, each once, and keeps their measurements and the networks they train."""

from __future__ import annotations

import contextlib
import copy
import datetime
import hashlib
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import files
from .._version import __version__
from ..artifacts import load, save
from ..errors import DataError, LeanBayesWarning
from ..training.checkpoint import remove
from .results import Measured

try:
    import fcntl
except ImportError:  # Windows: two processes may then do the same work, and write the same result
    fcntl = None  # type: ignore[assignment]

Key = Mapping[str, Any]


class Jobs:
    """Runs pieces of work, each once: what an earlier run finished is read back instead.

    Several processes may share a folder: a finished piece is written at once, and a piece or a network that another
    process is working on is waited for.

    folder: where finished pieces are kept as JSON; None keeps nothing.
    tell: called with a line of text when a piece starts.
    seconds: processor time of all pieces, also in earlier runs; one that needs others takes as long as they do.
    machines: the machines that the pieces ran on, as `machine` describes them.

    >>> jobs = Jobs(None)
    >>> jobs({"method": "mean-field", "seed": 0}, lambda: {"accuracy": 0.9})
    {'accuracy': 0.9}
    """

    def __init__(self, folder: Path | None, tell: Callable[[str], None] = lambda text: None) -> None:
        self.folder, self.tell, self.seconds = folder, tell, 0.0
        self.machines: list[dict[str, Any]] = []
        self._earlier, self._counted = 0.0, set[str]()  # seconds of earlier runs; pieces whose seconds are counted
        self._networks: dict[str, nn.Module] = {}

    def __call__(self, key: Key, work: Callable[[], Measured], label: str = "") -> dict[str, Any]:
        """The measurements of the piece that ``key`` describes completely: whatever changes them must be in it."""
        label = label or ", ".join(str(value) for value in key.values())
        text, digest = _encoded(key)
        path = None if self.folder is None else self.folder / f"{digest}.json"
        with _turn(path, lambda: self.tell(f"{label}: waiting for another process")):
            if path is not None and path.exists():
                self.tell(f"{label}: already done")
                piece = _read(path)
                took = 0.0 if digest in self._counted else piece["seconds"]
                self._earlier, self.seconds = self._earlier + took, self.seconds + took
            else:
                self.tell(label)
                began, earlier, before = time.process_time(), self._earlier, self.seconds
                with settings_as_given():
                    measured = dict(work())
                took = time.process_time() - began + self._earlier - earlier
                self.seconds = before + took
                finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                piece = {"key": json.loads(text), "seconds": took, "finished": finished, "machine": machine()}
                piece |= {"metrics": {k: float(v) for k, v in measured.items() if not isinstance(v, list)}}
                piece |= {"curves": {k: v for k, v in measured.items() if isinstance(v, list)}}
                if path is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    files.write_text(path, json.dumps(_finite(piece), allow_nan=False))
        self._counted.add(digest)
        if piece["machine"] and piece["machine"] not in self.machines:
            self.machines.append(piece["machine"])
        return {**piece["metrics"], **piece["curves"]}

    def file_of(self, key: Key) -> Path:
        """Where the piece of that key is kept, finished or not."""
        assert self.folder is not None
        return self.folder / f"{_encoded(key)[1]}.json"

    def seconds_of(self, key: Key) -> float | None:
        """How long the piece of that key took; None if it is not finished."""
        path = None if self.folder is None else self.folder / f"{_encoded(key)[1]}.json"
        return None if path is None or not path.exists() else float(_read(path)["seconds"])

    def network(
        self,
        key: Key,
        fresh: Callable[[], nn.Module],
        train: Callable[..., nn.Module],
        label: str = "",
        *,
        anew: bool = False,
    ) -> nn.Module:
        """A copy of the trained network that ``key`` describes completely, trained once for all pieces that need it.

        fresh: the plain network, which a file is read into. train: is given options of `fit`, a checkpoint to go on
        from, so that an interrupted training continues. anew: train it from the start in any case, for callbacks
        that have to see it all.

        The file is kept in networks/ beside the folder of this experiment, so that experiments share it; without a
        folder the network is kept in memory.
        """
        text, digest = _encoded(key)
        label = label or ", ".join(str(value) for value in key.values())
        if self.folder is None:
            if digest not in self._networks or anew:
                self.tell(label)
                self._networks[digest] = train()
            return copy.deepcopy(self._networks[digest])
        path = self.folder.parent / "networks" / f"{digest}.safetensors"
        with _turn(path, lambda: self.tell(f"{label}: waiting for another process")):
            if path.exists() and not anew:
                return load(path, into=fresh())
            self.tell(label)
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint = path.with_suffix(".checkpoint")
            network = train() if anew else train(checkpoint=checkpoint, resume=True)
            save(network, path, metadata={"key": json.loads(text)})
            remove(checkpoint)
        return network


@contextlib.contextmanager
def settings_as_given() -> Iterator[None]:
    """Run a block without the advice of `fit` to lower the weight of the KL: an experiment has the one it reports."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the KL counts", LeanBayesWarning)
        yield


def machine() -> dict[str, Any]:
    """What the speed of this process depends on: processor, threads, and versions."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


@contextlib.contextmanager
def _turn(path: Path | None, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file that is about to be written; the system releases it should the process be killed."""
    if path is None or fcntl is None or path.exists():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    with open(lock, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _encoded(key: Key) -> tuple[str, str]:
    """A key as JSON, and the name of its file."""
    text = json.dumps({"version": __version__, **key}, sort_keys=True, default=str)
    return text, hashlib.sha256(text.encode()).hexdigest()[:16]


def _finite(value: Any) -> Any:
    """The value with numbers that JSON does not have, infinity and NaN, as their names, which float() reads."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(path: Path) -> dict[str, Any]:
    """Read a finished piece."""
    names = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
    try:
        piece = json.loads(path.read_text(encoding="utf-8"))
        metrics = {name: float(value) for name, value in piece["metrics"].items()}
        curves = {
            name: [{k: names.get(v, v) if isinstance(v, str) else v for k, v in point.items()} for point in points]
            for name, points in piece["curves"].items()
        }
        return {
            "seconds": float(piece["seconds"]), "metrics": metrics, "curves": curves, "machine": dict(piece["machine"])
        }  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path}: expected a finished piece of a recipe ({error!r}); delete it to run it again"
        ) from error
