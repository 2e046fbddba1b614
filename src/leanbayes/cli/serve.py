"""`leanbayes serve`: a saved model behind HTTP, with batching, limits, metrics and a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from .. import checks
from ..serve.config import Settings


@dataclass(frozen=True)
class Serve:
    """Serve a saved network over HTTP: predictions with their uncertainty, and a page to try it.

    Args:
        file: a model that leanbayes train or leanbayes.save wrote, or an .onnx file of leanbayes export.
        host: the address to listen on; 0.0.0.0 for all of this machine's.
        port: the port to listen on; 0 for a free one.
        workers: processes that share the port, each with a copy of the model; one that dies is replaced.
        threads: of torch in each worker; 0 shares the processors out.
        scaled: the inputs of requests are scaled already, as in training.
        shape: of one datum, where the file does not say.
        task: what the outputs mean, where the file does not say.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        json: print errors as JSON.
    """

    file: Annotated[Path, tyro.conf.Positional]
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 0
    scaled: bool = False
    shape: tuple[int, ...] = ()
    task: Literal["classification", "regression"] | None = None
    model: str | None = None
    json: bool = False
    settings: Settings = field(default_factory=Settings)

    def run(self) -> dict[str, Any]:
        """Serve until a signal comes."""
        checks.whole_number("--port", self.port, at_least=0, at_most=65535)
        checks.whole_number("--workers", self.workers, at_most=256)
        checks.whole_number("--threads", self.threads, at_least=0, at_most=1024)
        for size in self.shape:
            checks.whole_number("--shape", size)

        from . import served

        opener = partial(served.opened, self.file, self.model, self.scaled, self.shape, self.task)
        served.run(opener, self.settings, self.host, self.port, self.workers, self.threads)
        return {"file": str(self.file), "stopped": True}
