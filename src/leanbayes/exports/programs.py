"""What is written: the program of one network, or the graph of a cascade."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .. import checks, sampling
from ..compress.cascade import Cascade
from ..compress.extract import extract
from ..convert.record import conversions
from ..convert.staged import Staged
from ..errors import ArtifactError, LeanBayesWarning
from ..eval_mode import undisturbed
from ..likelihoods import Likelihood
from ..prediction.api import predict
from ..prediction.predictive import Predictive
from .answers import Answers, OnePassAnswers, drawn, named
from .onnx_file import onnx_graph
from .stages import STAGE, cascaded
from .tracing import in_one_line, traced

Noise = Literal["frozen", "graph", "mean", "moments"]
TOLERANCE = 1e-4
"""How far the answers of a graph may be from those of `predict`."""
UNFIT = "example: expected inputs that the model takes, but it raised"


def program_of(
    model: nn.Module,
    meaning: Likelihood,
    inputs: Any,
    tensors: list[Tensor],
    samples: int,
    seed: int,
    noise: Noise,
    keep: bool = False,
) -> tuple[ExportedProgram, list[str], int]:
    """The program of one network, the names of what it returns, and how many samples are in it."""
    if noise == "mean" and not sampling.has_means(model):
        raise ArtifactError(
            'noise: expected a model with a network at its means for "mean", received one that has none (an ensemble, '
            'or weights whose mean is zero); use "frozen"'
        )
    with in_one_line(UNFIT):
        wanted = _wanted(model, meaning, inputs, samples, seed, noise, keep)
    with undisturbed(model):
        answers: Answers
        count = 1
        if noise == "moments":
            answers, count = OnePassAnswers(model, meaning, inputs, seed), int(wanted.counts.max())
        else:
            draw = [] if noise == "mean" else drawn(model, inputs, samples, seed, frozen=noise == "frozen")
            means = noise == "mean" and bool(conversions(model))
            network = extract(model, sparse=False, example_input=inputs) if means else model
            answers, count = Answers(network, meaning, inputs, draw, keep=keep), max(len(draw), 1)
        program, outputs = traced(answers, tensors, random=noise == "graph")
    if noise != "graph":
        _compare(dict(zip(outputs, program.module()(*tensors), strict=True)), named(wanted))
    return program, outputs, count


def _wanted(
    model: nn.Module, meaning: Likelihood, inputs: Any, samples: int, seed: int, noise: Noise, keep: bool
) -> Predictive:
    """What `predict` says of the example."""
    if noise != "moments":
        return predict(model, inputs, samples, seed, task=meaning, mean_only=noise == "mean", keep_samples=True)
    if keep:
        raise ArtifactError('keep_samples: expected False with noise="moments", which draws no networks')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LeanBayesWarning)
        wanted = predict(model, inputs, samples, seed, task=meaning, estimator="moments")
    if wanted.engine != "moments":
        why = [str(w.message) for w in caught if issubclass(w.category, LeanBayesWarning)]
        raise ArtifactError(
            "noise: expected a model whose layers all have rules for moments, received one that samples would be drawn "
            f'of ({"; ".join(why) or "it has no random layer"}); use "frozen" or "mean"'
        )
    return wanted


def cascade_graph(
    model: Staged,
    inputs: Any,
    tensors: list[Tensor],
    names: list[str],
    samples: int,
    seed: int,
    noise: Noise,
    others: dict[str, Any],
) -> tuple[Any, list[str], int]:
    """The ONNX graph of a cascade: its stages, each as a graph of its own, and what decides between them.

    others: options that belong to one network, which are refused. Returns the names of the outputs and the largest
    number of samples of a stage as well.
    """
    for name, value in {**others, "noise": None if noise in ("frozen", "mean") else noise}.items():
        if not isinstance(model, Cascade) or (value is not None and value is not False):
            raise ArtifactError(
                f'{name}: expected nothing with a cascade, whose stages have their own (noise "frozen" or "mean"), '
                f"received {checks.short(value)}"
            )
    assert isinstance(model, Cascade)
    with in_one_line(UNFIT):
        predict(model, inputs, samples, seed)  # refuses what does not fit together
    graphs, counts, asked = [], [], [number for number, _ in model.asked()]
    for number in asked:
        stage, own = model.stages[number], model.samples[number] or samples
        meaning = model.likelihood(number)
        program, outputs, count = program_of(stage, meaning, inputs, tensors, own, seed, noise)
        graphs.append(onnx_graph(program, names, outputs))
        counts.append(count)
    if len(graphs) == 1:
        return graphs[0], outputs, counts[0]
    thresholds = [model.thresholds[number] for number in asked[:-1]]
    return cascaded(graphs, asked, model.score, thresholds), [*outputs, STAGE], max(counts)


def _compare(answers: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Raise an ArtifactError where the graph answers otherwise than `predict` does."""
    for name, found in answers.items():
        if not torch.allclose(found, wanted[name], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise ArtifactError(
                f"{name}: expected the answers of lb.predict, received a graph whose answers differ by "
                f"{float((found - wanted[name]).abs().max()):.2g}; the model may depend on what a graph cannot hold, "
                "such as a value that Python decides by"
            )
