"""`read_export`: an exported ONNX file, run by onnxruntime, with the answers of `predict`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import batches, checks, config, files
from ..conformal.config import Conformal
from ..errors import ArtifactError, ConfigError, DataError
from ..evaluation.pixels import Pixels
from ..optional import require
from ..prediction.predictive import Predictive
from .onnx_file import KEY
from .stages import STAGE


class ExportedModel:
    """A graph that `leanbayes.export` wrote, and what is known of it.

    document: the JSON that stands in the file. task, classes, samples: as in `Predictive`. pixels: how pixels in [0, 1]
    become inputs, or None. metadata: what `export` was given to store.
    """

    def __init__(self, session: Any, document: Mapping[str, Any]) -> None:
        self.session, self.document = session, dict(document)
        self.task: str = document["task"]
        self.samples: int = document["samples"]
        self.classes: tuple[str, ...] = tuple(document["classes"])
        self.metadata: dict[str, Any] = document["metadata"]
        self.inputs: list[dict[str, Any]] = document["inputs"]
        self.outputs: list[str] = document["outputs"]
        self.conformal: Conformal | None = _config(document["conformal"])
        self.pixels: Pixels | None = _config(document["pixels"])

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
        """The answers of the graph by name, as arrays.

        inputs: a tensor or an array; several as a tuple, in the order of ``self.inputs``, or as a mapping by name.
        """
        return dict(zip(self.outputs, self.session.run(self.outputs, self.fed(inputs)), strict=True))

    def predict(self, inputs: Any) -> Predictive:
        """The predictive distribution of a batch, as `leanbayes.predict` returns it."""
        found = {name: torch.from_numpy(value) for name, value in self.run(inputs).items()}
        mean = found["probs"] if "probs" in found else found["mean"]
        is_class = "probs" in found
        task = self.task if self.task in ("classification", "segmentation", "regression") else self._other_task(found)
        epistemic = found["mutual_information"] if is_class else found["epistemic"]
        whole = found["entropy"] if is_class else found["variance"]
        return Predictive(
            task,
            mean,
            found["variance"],
            (whole - epistemic).clamp_min(0),
            epistemic,
            torch.full((len(mean),), self.samples),
            "onnx",
            found.get("samples"),
            found.get("noise"),
            found.get("energy"),
            None,
            self.conformal,
            self.classes if task == "classification" and mean.shape[1] == len(self.classes) else (),
            stages=found.get(STAGE),
        )

    def _other_task(self, found: Mapping[str, Tensor]) -> str:
        """What an answer of images or of a likelihood of the user's own is."""
        if "probs" in found:
            return "segmentation" if found["probs"].ndim > 2 else "classification"
        return "regression" if "noise" in found else "custom"

    def fed(self, inputs: Any) -> dict[str, np.ndarray]:
        """Inputs as onnxruntime takes them, by name; refused where they are not what the graph takes."""
        if not isinstance(inputs, Mapping):
            parts = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
            if len(parts) != len(self.inputs):
                raise DataError(f"inputs: expected {self._wanted()}, received {len(parts)}")
            inputs = {spec["name"]: part for spec, part in zip(self.inputs, parts, strict=True)}
        fed = {}
        for spec in self.inputs:
            if spec["name"] not in inputs:
                raise DataError(f"inputs: expected {self._wanted()}, received {', '.join(map(str, inputs)) or 'none'}")
            value = batches.accept(inputs[spec["name"]], name="inputs", arguments=True)
            if not isinstance(value, Tensor):
                raise DataError(f"inputs: expected {self._wanted()}, received {type(value).__name__}")
            array = value.detach().cpu().numpy()
            if list(array.shape[1:]) != spec["shape"][1:] or not array.ndim or not len(array):
                shape = ", ".join(map(str, spec["shape"][1:]))
                raise DataError(f"{spec['name']}: expected shape (batch, {shape}), received {array.shape}")
            fed[spec["name"]] = np.ascontiguousarray(array, dtype=spec["dtype"])
        return fed

    def _wanted(self) -> str:
        names = ", ".join(spec["name"] for spec in self.inputs)
        return f"{len(self.inputs)} tensor{'s' if len(self.inputs) > 1 else ''} ({names})"

    def __repr__(self) -> str:
        shapes = ", ".join(f"{spec['name']}: {spec['shape']}" for spec in self.inputs)
        return f"ExportedModel({self.task}, {self.samples} samples, {shapes})"


def read_export(path: str | os.PathLike[str], *, session_options: Any = None, providers: Any = None) -> ExportedModel:
    """Read an .onnx file that `leanbayes.export` wrote; needs onnxruntime, ``pip install 'leanbayes[onnx]'``.

    ``read_export(path).predict(x)`` returns a `Predictive`, ``.run(x)`` arrays by name.

    session_options: of onnxruntime (threads, optimisation). providers: the devices it may use; by default the CPU.
    """
    require("onnxruntime", "onnx", "read_export")
    import onnxruntime

    where = files.name_of(path)
    if not os.path.isfile(where):
        raise ArtifactError(f"expected a file, found none at {where!r}; lb.export(model, path, example) writes one")
    if session_options is not None:
        options = onnxruntime.SessionOptions
        what = "onnxruntime.SessionOptions()"
        checks.instance("session_options", session_options, options, what, error=ArtifactError)
    devices = ["CPUExecutionProvider"] if providers is None else _providers(providers)
    try:
        session = onnxruntime.InferenceSession(where, session_options, devices)
        stored = session.get_modelmeta().custom_metadata_map.get(KEY)
    except Exception as error:  # onnxruntime has its own types for every way in which a file can be wrong
        raise ArtifactError(
            f"{where}: expected an ONNX file, received one that onnxruntime refuses ({error})"
        ) from error
    if stored is None:
        raise ArtifactError(f"{where}: expected a file that lb.export wrote, received an ONNX file of another origin")
    try:
        document = json.loads(stored)
        if document["version"] != 1:
            raise ArtifactError(
                f"{where}: expected version 1, received {document['version']}; a newer leanbayes wrote it"
            )
        return ExportedModel(session, document)
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{where}: its metadata are damaged ({error}); export the model again") from error


def _providers(given: Any) -> list[Any]:
    """Devices that onnxruntime has here: it would take others for the CPU."""
    import onnxruntime

    known = onnxruntime.get_available_providers()

    def provider(name: str, value: Any) -> Any:
        device = value[0] if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict) else value
        if not isinstance(device, str) or device not in known:
            checks.refuse(name, f"one of {', '.join(known)}, or (name, options)", value, ArtifactError)
        return value

    return checks.iterable_of("providers", given, "names", provider, error=ArtifactError, hint=f"try {known[-1:]}")


def _config(stored: Any) -> Any:
    return None if stored is None else config.from_dict(stored)
