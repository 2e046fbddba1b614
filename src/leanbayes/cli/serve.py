"""`leanbayes serve`: a saved model behind HTTP, with batching, limits, metrics and a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .. import checks
from ..errors import DataError
from ..serve.config import Settings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ..data.tables import Table
    from ..serve.predictor import Predictor
    from .saved import Training


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

        from ..serve import supervisor

        opener = partial(opened, self.file, self.model, self.scaled, self.shape, self.task)
        supervisor.run(opener, self.settings, self.host, self.port, self.workers, self.threads)
        return {"file": str(self.file), "stopped": True}


def opened(file: Path, network: str | None, scaled: bool, given: tuple[int, ...], task: str | None) -> Predictor:
    """The model of a file, with what its training says about its inputs."""
    from ..exports.reading import read_export
    from ..serve.predictor import Exported, Predictor, TorchModel
    from .saved import open_model, training_of

    model: TorchModel | Exported
    if file.suffix.lower() == ".onnx":
        exported = read_export(file)
        training, model = training_of(exported.metadata, file), Exported(exported)
        given = given or tuple(exported.inputs[0]["shape"][1:])
    else:
        found, training = open_model(file, network)
        model = TorchModel(found, task)
    known = training.prepared_by
    if known is None and training.mean is None and not scaled:
        raise DataError(
            f"{file} does not say how inputs were scaled in training, and predictions for other scales are wrong; pass "
            "--scaled if requests are to scale them as they were then, or train with leanbayes train"
        )
    shape = tuple(training.input_shape or (() if known is None else known.input_shape)) or given
    if not shape:
        raise DataError(f"{file} does not say of which shape a datum is; add it, --shape 3 32 32 say")
    columns = known.columns if known is not None and not scaled else ()
    prepare = partial(prepared_inputs, training, shape, scaled)
    scale = training.y_mean, training.y_std
    return Predictor(model, prepare, shape, classes=training.classes or (), columns=columns, scale=scale)


def prepared_inputs(training: Training, shape: tuple[int, ...], scaled: bool, inputs: np.ndarray | Table) -> Tensor:
    """Inputs in original units as the network takes them: as `leanbayes predict` prepares those of a file."""
    from dataclasses import replace

    import numpy as np
    import torch

    from ..data.reading import prepare
    from .inputs import prepared

    known = training.prepared_by
    if known is not None and not scaled:
        return prepare(inputs, known)
    assert isinstance(inputs, np.ndarray)
    if inputs.dtype == np.uint8 and len(shape) == 3 and not scaled:  # an image: pixels from 0 to 1
        inputs = inputs / 255
    with np.errstate(over="ignore"):
        x = torch.from_numpy(inputs.astype(np.float32))
    if not bool(torch.isfinite(x).all()):
        raise DataError("inputs: expected finite numbers that a float32 can hold, received others")
    return prepared(x, replace(training, input_shape=list(shape)), Path("inputs"), scaled=scaled)
