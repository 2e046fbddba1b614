"""From a model to a program of torch: traced, constants computed, what samples have in common once."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import ArtifactError, LeanBayesError
from .answers import Answers
from .missing import IN_TERMS_OF_OTHERS
from .sharing import Shared

LARGEST = 2**31 - 2**24
"""Bytes of constants that fit into one file: protobuf, which ONNX is written in, stops at 2 GB."""


def traced(answers: Answers, tensors: list[Tensor], *, random: bool) -> tuple[ExportedProgram, list[str]]:
    """The program that computes the answers for batches of any size, and their names in its order.

    tensors: an example of the inputs, of at least two data. random: whether it may draw random numbers.
    """
    dims = tuple({0: Dim("batch")} for _ in tensors)
    with refused("torch.export cannot trace the model"):
        first = torch.export.export(answers, tuple(tensors), dynamic_shapes=(dims,), strict=False)
        names = list(pytree.tree_unflatten(range(first.call_spec.out_spec.num_leaves), first.call_spec.out_spec))
        shared = Shared(first.run_decompositions(dict(IN_TERMS_OF_OTHERS)))
        if shared.random and not random:
            raise ArtifactError(
                "noise: expected a model whose randomness is that of its Bayesian layers, received one that draws "
                'numbers by itself (F.dropout(training=True), torch.randn in forward); noise="graph" lets the graph '
                "draw them"
            )
        if shared.constants > LARGEST:
            raise ArtifactError(
                f"samples: expected constants of at most 2 GB, received {shared.constants / 2**30:.1f} GB, since "
                'every sample has weights of its own in the file; take fewer samples, or noise="graph", which stores '
                "means and deviations once"
            )
        return torch.export.export(shared.module, tuple(tensors), dynamic_shapes=dims, strict=False), names


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Say in one line what torch and its exporters say in pages; their warnings and notes on progress are left out."""
    chatty = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in chatty]
    try:
        for log in chatty:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings(), in_one_line(what):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(chatty, levels, strict=True):
            log.setLevel(level)


@contextlib.contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Run a block that fails with an ArtifactError, which begins with ``what`` and ends with the cause."""
    try:
        yield
    except LeanBayesError:
        raise
    except Exception as error:  # of the tracer, the converter or the model: no common type
        raise ArtifactError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The first telling line of the error that caused all others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines: list[Any] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
