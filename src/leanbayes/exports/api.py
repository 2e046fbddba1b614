"""`export`: a model, its samples and their averages as one graph in one file."""

from __future__ import annotations

import copy
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .. import _version, batches, checks, config, files
from ..artifacts.saving import bare_model, plain_metadata
from ..compress.width import set_width_
from ..convert.implementation import implementation
from ..convert.record import conversions, get
from ..convert.staged import Staged
from ..errors import ArtifactError
from ..evaluation.pixels import Pixels
from ..likelihoods import Likelihood
from ..ordering.unit import units
from ..prediction.api import resolve_task
from .onnx_file import onnx_bytes, onnx_graph, require_onnx
from .programs import Noise, cascade_graph, program_of
from .tracing import refused

Format = Literal["onnx", "torch"]
BESIDE = "export.json"
"""The name of the metadata in a .pt2 file."""
MOST_SAMPLES = 4096


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    samples: int = 32,
    seed: int = 0,
    *,
    width: float | Mapping[str, float] | None = None,
    noise: Noise = "frozen",
    format: Format | None = None,
    task: Any = None,
    keep_samples: bool = False,
    pixels: Pixels | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model, Bayesian or plain, as one graph that answers with its uncertainty; returns the path.

    The graph takes a batch of any size, as the model does, and returns what `predict` says, by the same names:

    - classes: ``probs``, ``entropy``, ``mutual_information``, ``variance`` and ``energy``;
    - regression: ``mean``, ``variance`` (the total), ``epistemic``, ``entropy``, ``samples`` and ``noise`` (variances);
    - other tasks: ``mean``, ``variance``, ``epistemic``.

    What precedes the first random layer stands in it once, whatever the number of samples. A temperature and the noise
    of a regression are part of it. Classes, conformal thresholds, ``pixels``, ``metadata`` and the shape of the inputs
    are written beside it as JSON; `read_export` reads them.

    example: inputs as the model takes them, one datum or several; the graph takes such data, in batches of any size.
    samples: networks in the graph; an ensemble has no more than its members.
    seed: of the noise that is frozen; the answers are those of ``predict(model, x, samples, seed)``.
    width: of a nested network, as `set_width_` understands it. Channels beyond are left out where they are the last of
        their layers (``by_importance=False``), and always of the network at the means; elsewhere they are zeros.
    noise: "frozen" stores every drawn network, so that a file grows with samples times the random weights; "graph"
        stores means and deviations, and the graph draws new networks in every call (all data of a batch share them);
        "mean" is one pass at the posterior means; "moments" is one pass that carries mean and variance, as
        ``predict(..., estimator="moments")``, for networks whose layers all have rules for it.
    format: "onnx", which needs the packages of ``pip install 'leanbayes[onnx]'``, or "torch", a program that
        `torch.export.load` reads; None goes by the name of the file, .onnx or .pt2.
    task: what the outputs mean, where the model was not trained by `fit`.
    keep_samples: the graph also returns what every network said, ``samples`` (always for regression).
    pixels: how pixels in [0, 1] became inputs. metadata: anything else to store, as JSON has it.

    A `Cascade` becomes one .onnx file too: data that a stage is unsure of go on to the next inside the graph, and
    ``stage`` says who answered. A stage that repeats another with more samples computes all of its own.

    Before the file is written, the graph answers the example and is compared with `predict`.

    >>> import tempfile
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, {"2": lb.MeanField()})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export(model, folder + "/model.pt2", torch.zeros(1, 4), samples=2, task="classification")
    ...     graph = torch.export.load(path).module()
    >>> [tuple(answer.shape) for answer in graph(torch.randn(7, 4))]
    [(7, 3), (7,), (7,), (7, 3), (7,)]
    """
    files.check_directory(path)
    checks.module("model", model, error=ArtifactError)
    hint = "every sample is a part of the graph"
    samples = checks.whole_number("samples", samples, at_most=MOST_SAMPLES, error=ArtifactError, hint=hint)
    seed = checks.seed(seed, error=ArtifactError)
    checks.one_of("noise", noise, get_args(Noise), error=ArtifactError)
    kind = _format(path, format)
    checks.flag("keep_samples", keep_samples, error=ArtifactError)
    if pixels is not None:
        checks.instance("pixels", pixels, Pixels, "lb.Pixels(mean=..., std=...)", error=ArtifactError)
    said = plain_metadata(metadata)
    if kind == "onnx":
        require_onnx()
    model = bare_model(model)
    meaning, (inputs, tensors, names) = resolve_task(model, task), _inputs(example, model)
    proto = program = None
    if isinstance(model, Staged):
        if kind != "onnx":
            raise ArtifactError(
                f"model: expected one network for a file of torch, received a {type(model).__name__}, which decides "
                "for each datum how much of it to ask; write an .onnx file, or export its stages, a file each: for i, "
                "stage in enumerate(model.stages): lb.export(stage, ...)"
            )
        given = {"width": width, "keep_samples": keep_samples, "task": task}
        proto, outputs, count = cascade_graph(model, inputs, tensors, names, samples, seed, noise, given)
    else:
        model = at_width(model, width)
        meaning = resolve_task(model, task)  # a width may have a temperature of its own
        program, outputs, count = program_of(model, meaning, inputs, tensors, samples, seed, noise, keep_samples)
        proto = onnx_graph(program, names, outputs) if kind == "onnx" else None
    document = _document(model, meaning, count, seed, noise, width, pixels, said)
    document["inputs"] = [_described(name, tensor) for name, tensor in zip(names, tensors, strict=True)]
    document["outputs"] = outputs
    if proto is not None:
        return files.write_bytes(path, onnx_bytes(proto, document))
    buffer = io.BytesIO()
    with refused("torch.export cannot save the model"):
        assert program is not None
        torch.export.save(program, buffer, extra_files={BESIDE: json.dumps(document)})
    return files.write_bytes(path, buffer.getvalue())


def at_width(model: nn.Module, width: float | Mapping[str, float] | None) -> nn.Module:
    """The model on the CPU at a width; a copy where it is not that already, of which layers compute a part if they can.

    Channels of a set width that are the first of a layer are left out of the arithmetic; others are multiplied by zero.
    """
    if width is None and all(p.device.type == "cpu" for p in model.parameters()):
        return model
    model = copy.deepcopy(model).cpu()
    if width is not None:
        set_width_(model, width)
        for unit in units(model):
            unit.skip = True
        for method in dict.fromkeys(conversions(model).values()):
            implementation(method).attach(model)
    return model


def _format(path: Any, format: Any) -> str:
    """The format that is asked for, or that the name of the file means."""
    if format is not None:
        return str(checks.one_of("format", format, ("onnx", "torch"), error=ArtifactError))
    suffix = os.path.splitext(files.name_of(path))[1].lower()
    found = {".onnx": "onnx", ".pt2": "torch"}.get(suffix)
    if found is None:
        raise ArtifactError(
            f"path: expected a name that ends with .onnx or .pt2, received {files.name_of(path)!r}; rename it, or say "
            'format="onnx" or format="torch"'
        )
    return found


def _inputs(example: Any, model: nn.Module) -> tuple[Any, list[Tensor], list[str]]:
    """An example of at least two data (one is no batch to a tracer), its tensors, and the names of these."""
    inputs = batches.to(batches.accept(example, model, name="example", error=ArtifactError, arguments=True), "cpu")
    if not isinstance(inputs, (Tensor, tuple, list, Mapping)):
        raise ArtifactError(
            "example: expected inputs of the model, a tensor or a tuple or mapping of tensors, received "
            f"{type(example).__name__}; take one batch of it"
        )
    found = [(name, value) for name, value in batches.leaves(inputs) if isinstance(value, Tensor)]
    if not found or any(not value.ndim or not len(value) for _, value in found):
        raise ArtifactError(f"example: expected at least one datum, received {checks.short(example)}")
    if any(len(value) != len(found[0][1]) for _, value in found):
        sizes = " and ".join(str(tuple(value.shape)) for _, value in found)
        raise ArtifactError(f"example: expected tensors with a row for every datum, received {sizes}")
    inputs = batches.map_tensors(lambda t: torch.cat([t, t])[:2].detach(), inputs)
    given = [name or "input" for name, _ in found]
    names = [f"{name}_{i}" if given.count(name) > 1 else name for i, name in enumerate(given)]
    return inputs, [value for _, value in batches.leaves(inputs) if isinstance(value, Tensor)], names


def _document(
    model: nn.Module,
    meaning: Likelihood,
    samples: int,
    seed: int,
    noise: Noise,
    width: Any,
    pixels: Pixels | None,
    said: dict[str, Any],
) -> dict[str, Any]:
    """What the graph does not say, as JSON."""
    record = get(model)
    conformal = None if record is None else record.conformal
    if conformal is not None and conformal.likelihood != str(meaning):
        conformal = None
    return {
        "leanbayes": _version.__version__,
        "version": 1,
        "task": meaning.task,
        "likelihood": meaning.to_dict(),
        "samples": samples,
        "noise": noise,
        "seed": seed if noise == "frozen" else None,
        "width": dict(width) if isinstance(width, Mapping) else width,
        "classes": [] if record is None else list(record.classes),
        "conformal": None if conformal is None else config.to_dict(conformal),
        "pixels": None if pixels is None else config.to_dict(pixels),
        "metadata": said,
    }


def _described(name: str, tensor: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": [None, *tensor.shape[1:]], "dtype": str(tensor.dtype).removeprefix("torch.")}
