"""`quantize_export`: an exported ONNX file with weights and activations of eight bits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import batches, checks, files
from ..errors import ArtifactError
from ..optional import require
from .onnx_file import KEY
from .reading import read_export
from .tracing import refused

QUANTIZED = ["Conv", "Gemm", "MatMul"]
"""What is computed with eight bits: the layers. Averages, entropies and activations between them stay as they are."""


def quantize_export(
    path: str | os.PathLike[str], out: str | os.PathLike[str], data: Any = None, *, batches_used: int = 8
) -> Path:
    """Write a copy of an .onnx file whose layers compute with eight bits; returns its path.

    The metadata go along. What it does to accuracy and calibration depends on the network: evaluate the copy
    (``read_export(out).predict``) beside the original. Networks at the means (``noise="mean"``) are what it is for.

    data: inputs as the model takes them, whose ranges set the scales of activations (static quantisation); a tensor, a
        loader or a list of batches. Without data scales are found anew in every call (dynamic quantisation), which is
        slower, and convolutions stay as they are.
    batches_used: how many batches of the data are looked at.
    """
    require("onnxruntime", "onnx", "quantize_export")
    require("onnx", "onnx", "quantize_export")
    import onnx
    from onnxruntime import quantization as onnx_quantization

    files.check_directory(out)
    source = read_export(path)
    count = checks.whole_number("batches_used", batches_used, error=ArtifactError)
    fed = None if data is None else list(_first(data, source, count))
    with tempfile.TemporaryDirectory() as folder, refused("onnxruntime cannot quantise the model"):
        prepared, made = f"{folder}/prepared.onnx", f"{folder}/made.onnx"
        onnx_quantization.quant_pre_process(files.name_of(path), prepared, skip_symbolic_shape=True)
        if fed is None:
            proto = onnx.load(prepared)
            del proto.graph.value_info[:]  # shapes of weights too, which are about to be transposed
            onnx.save(proto, prepared)
            onnx_quantization.quantize_dynamic(
                prepared, made, op_types_to_quantize=["Gemm", "MatMul"], per_channel=True
            )
        else:
            reader = _Reader(iter(fed))
            onnx_quantization.quantize_static(prepared, made, reader, op_types_to_quantize=QUANTIZED, per_channel=True)
        proto = onnx.load(made)
        kept = onnx.load(files.name_of(path), load_external_data=False).metadata_props
        del proto.metadata_props[:]
        proto.metadata_props.extend(prop for prop in kept if prop.key == KEY)
    return files.write_bytes(out, proto.SerializeToString())


def _first(data: Any, source: Any, count: int) -> Iterator[dict[str, np.ndarray]]:
    """The first batches as the graph takes them."""
    for number, batch in enumerate(batches.stream(data)):
        if number == count:
            return
        yield source.fed(batches.split(batch)[0])


class _Reader:
    """Batches as onnxruntime's calibration asks for them."""

    def __init__(self, fed: Iterator[dict[str, np.ndarray]]) -> None:
        self.fed = fed

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch, None after the last."""
        return next(self.fed, None)

    def __len__(self) -> int:
        return 0
