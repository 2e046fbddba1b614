"""The predictor of a model file for `leanbayes serve`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.reading import prepare
from ..data.tables import Table
from ..errors import DataError
from ..exports.reading import read_export
from ..serve.predictor import Exported, Predictor, TorchModel
from ..serve.supervisor import run as run
from .inputs import prepared
from .saved import Training, open_model, training_of


def opened(file: Path, network: str | None, scaled: bool, given: tuple[int, ...], task: str | None) -> Predictor:
    """The predictor of a model file, with the input shape and scaling of its training."""
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
    as_trained = partial(prepared_inputs, training, shape, scaled)
    scale = training.y_mean, training.y_std
    return Predictor(model, as_trained, shape, classes=training.classes or (), columns=columns, scale=scale)


def prepared_inputs(training: Training, shape: tuple[int, ...], scaled: bool, inputs: np.ndarray | Table) -> Tensor:
    """Inputs in original units as inputs of the network, prepared as `leanbayes predict` does."""
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
