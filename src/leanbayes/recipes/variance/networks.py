"""The networks of the experiments of variance networks, and tables that have a row for each.

Loss, optimiser and batches are the paper's: N * cross-entropy + KL without warm-up, Adam at 1e-3 that falls linearly to
0, batches of 200, noise on the outputs of every layer in training. Where the schedule is shorter than the paper's 200
epochs, log alpha has a learning rate of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...methods import Dropout, Method
from ..experiment import Cell, Experiment
from ..jobs import Jobs
from ..paper import printed
from ..results import Measured
from ..training import Training, network_cell

DENSE: dict[str, Any] = {"batch_norm": True, "bias": False}  # LeNet-5 as run with one variance layer
FOUR: dict[str, Any] = {"batch_norm": "dense"}  # and with four
FAST: dict[str, Any] = {"lr_scale": 3e-2, "beta_scale": 0.99}


@dataclass(frozen=True)
class Line:
    """A row of a table: how its network is trained, and the number of seeds and of samples."""

    training: Training
    seeds: int = 1
    samples: int = 20


def small(methods: Mapping[str, Method], **changes: Any) -> Training:
    """A perceptron with BatchNorm on the embedded digits, for the smoke preset; layer "4" is the second."""
    options = {"hidden": (64, 64), "batch_norm": True, "bias": False}
    fast = {"epochs": 4, "lr": 3e-3, "lr_scale": 5e-2, "beta_scale": 0.99, "batch_size": 50}
    return replace(Training("digits", "mlp", options, methods, **fast), **changes)  # type: ignore[arg-type]


def lenet(methods: Mapping[str, Method], preset: str, options: Mapping[str, Any] = DENSE, **changes: Any) -> Training:
    """LeNet-5 on MNIST: twelve epochs with a fast alpha, or the paper's 200."""
    training = Training("mnist", "lenet5", dict(options), methods)
    return replace(training, **{**({"epochs": 12, **FAST} if preset == "cpu" else {}), **changes})


def vgg(methods: Mapping[str, Method], preset: str, **options: Any) -> Training:
    """The VGG-like network on CIFAR-10, with dropout that stays on; at a quarter of its width, or as published."""
    methods = {"drop*": Dropout(), **methods}
    training = Training("cifar10", "vgg_like", options, methods, epochs=550, batch_size=100, augment=True)
    if preset == "paper":
        return training
    # smaller batches: a fifth of the images makes a fifth of the steps
    reduced = {"options": {"width": 0.25, **options}, "epochs": 12, "limit": 10_000, "test_limit": 2000}
    return replace(training, **reduced, batch_size=50, **{**FAST, "lr_scale": 1e-2})  # type: ignore[arg-type]


def table(name: str, lines: Callable[[str], Mapping[str, Line]], measure: Callable[..., Measured]) -> Experiment:
    """The experiment whose table has a row for every line of a preset; the setting is the number of epochs."""

    def cells(preset: str) -> Iterator[Cell]:
        for method, line in lines(preset).items():
            paper = {} if preset == "smoke" else printed(name, method)
            yield cell(line, method, method, line.training.epochs, measure, paper)

    return Experiment(name, cells)


def cell(
    line: Line,
    what: str,
    method: str,
    setting: Any,
    measure: Callable[..., Measured],
    paper: Mapping[str, float] | None = None,
) -> Cell:
    """The network of a line, measured by ``measure(model, data, samples, seed)``; what: the name of the measurement."""
    also = {"measured": what, "samples": line.samples}
    return network_cell(
        line.training.data,
        line.training,
        method,
        setting,
        partial(measure, samples=line.samples),
        line.seeds,
        paper,
        **also,
    )


def checkpoint_options(jobs: Jobs, name: str) -> dict[str, Any]:
    """Options of `fit` with which a long training goes on wherever it was stopped, its log beside the checkpoint."""
    if jobs.folder is None:
        return {}
    jobs.folder.mkdir(parents=True, exist_ok=True)
    return {"checkpoint": jobs.folder / f"{name}.ckpt", "resume": True, "log": jobs.folder / f"{name}.jsonl"}
