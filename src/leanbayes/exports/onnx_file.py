"""Programs of torch as ONNX: one file, with what the numbers mean in its metadata."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.export import ExportedProgram

from ..optional import require
from .tracing import refused

KEY = "leanbayes"
"""The name of the metadata in a file."""


def require_onnx() -> None:
    """Raise an error that gives the pip command where ONNX files cannot be written."""
    require("onnx", "onnx", "export")
    require("onnxscript", "onnx", "export")


def onnx_graph(program: ExportedProgram, inputs: list[str], outputs: list[str]) -> Any:
    """An ONNX model with these names; the batch is a dimension called "batch"."""
    with refused("torch.onnx cannot write the model"):
        made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
        assert made is not None
        proto = made.model_proto
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == batch:
                dim.dim_param = "batch"
    for part in (*proto.graph.node, *proto.graph.value_info, *proto.graph.initializer, *proto.graph.input, proto.graph):
        del part.metadata_props[:]  # where in which source file a node came from
        part.doc_string = ""
    return proto


def onnx_bytes(proto: Any, document: dict[str, Any]) -> bytes:
    """The content of an ONNX file with what the numbers mean."""
    del proto.metadata_props[:]
    proto.metadata_props.add(key=KEY, value=json.dumps(document))
    return proto.SerializeToString()  # type: ignore[no-any-return]
