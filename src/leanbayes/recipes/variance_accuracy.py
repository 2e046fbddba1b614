"""Table 1 of variance networks: one sample, the means and an ensemble, of dropout and of variance networks.

The row "variance, dense1" is the main one: LeNet-5 with its first dense layer a variance layer, the network of the
paper's table 2; in its table 1 all four layers are. log alpha starts at -5, as published, and has a learning rate of
its own, so that it passes 5 in a dozen epochs (the paper's 200 take it to 11.7). The CIFAR-10 figures in
brackets are those of the full network after 550 epochs on all images; what the cpu preset trains is far smaller and
sees a fifth of them.

stochastic, deterministic, ensemble: accuracy with one sample, at the means, and averaged over samples.
zero-mean swap: of the ensemble once all means are set to 0 (equation 11). deterministic, recalibrated: at the means
once BatchNorm's statistics have been re-estimated there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..methods import Dropout, Method, Variance
from .base import Jobs, Metrics, Row, recipe
from .variance import done, log_alphas, procedures, recalibrated_accuracy, swapped_accuracy
from .workload import Run

if TYPE_CHECKING:
    from torch import nn

    from ..data import DataSet

DENSE: dict[str, Any] = {"batch_norm": True, "bias": False}  # LeNet-5 as run with one variance layer
FOUR: dict[str, Any] = {"batch_norm": "dense"}  # and with four
FAST: dict[str, Any] = {"lr_scale": 3e-2, "beta_scale": 0.99}


@dataclass(frozen=True)
class Line:
    """A row of the table: a run, what the paper has there, and the seeds and samples it takes."""

    run: Run
    paper: Mapping[str, float]
    seeds: int = 1
    samples: int = 20


def small(methods: Mapping[str, Method], **changes: Any) -> Run:
    """A perceptron with BatchNorm on the embedded digits, for the smoke preset; layer "4" is the second."""
    options = {"hidden": (64, 64), "batch_norm": True, "bias": False}
    fast = {"epochs": 4, "lr": 3e-3, "lr_scale": 5e-2, "beta_scale": 0.99, "batch_size": 50}
    return replace(Run("digits", "mlp", options, methods, **fast), **changes)  # type: ignore[arg-type]


def lenet(methods: Mapping[str, Method], preset: str, options: Mapping[str, Any] = DENSE, **changes: Any) -> Run:
    """LeNet-5 on MNIST: twelve epochs with a fast alpha, or the paper's 200."""
    run = Run("mnist", "lenet5", dict(options), methods)
    return replace(run, **{**({"epochs": 12, **FAST} if preset == "cpu" else {}), **changes})


def vgg(methods: Mapping[str, Method], preset: str, **options: Any) -> Run:
    """The VGG-like network on CIFAR-10, with dropout that stays on; at a quarter of its width, or as published."""
    methods = {"drop*": Dropout(), **methods}
    run = Run("cifar10", "vgg_like", options, methods, epochs=550, batch_size=100, augment=True)
    if preset == "paper":
        return run
    # smaller batches: a fifth of the images makes a fifth of the steps
    reduced = {"options": {"width": 0.25, **options}, "epochs": 12, "limit": 10_000, "test_limit": 2000}
    return replace(run, **reduced, batch_size=50, **{**FAST, "lr_scale": 1e-2})  # type: ignore[arg-type]


def lines(preset: str) -> dict[str, Line]:
    """The rows of a preset by name."""
    variance = Variance()
    if preset == "smoke":
        return {
            "dropout": Line(small({"4": Dropout(0.5)}), {}, samples=4),
            "variance": Line(small({"4": variance}), {}, samples=4),
        }
    four = dict.fromkeys(("conv1", "conv2", "dense1", "dense2"), variance)
    last = dict.fromkeys(("conv11", "conv12", "conv13", "dense1"), variance)
    return {
        "dropout": Line(
            lenet({"dense1": Dropout(0.5)}, preset), {"stochastic": 0.991, "deterministic": 0.994, "ensemble": 0.994}
        ),
        "variance, dense1": Line(
            lenet({"dense1": variance}, preset), {"deterministic": 0.113, "ensemble": 0.992}, seeds=3
        ),
        "variance, all layers": Line(
            lenet(four, preset, FOUR),
            {"stochastic": 0.959, "deterministic": 0.101, "ensemble": 0.993, "log alpha dense1": 6.3},
        ),
        "dropout, VGG-like": Line(
            vgg({}, preset), {"stochastic": 0.910, "deterministic": 0.931, "ensemble": 0.934}, samples=10
        ),
        "variance, VGG-like": Line(
            vgg(last, preset, dropout_last=False),
            {"stochastic": 0.913, "deterministic": 0.100, "ensemble": 0.934},
            samples=10,
        ),
    }


@recipe(
    "variance-accuracy",
    "variance networks, table 1: one sample, the means, an ensemble; LeNet-5 on MNIST, VGG-like on CIFAR-10",
    seeds={"smoke": 1, "cpu": 3, "paper": 3},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a network; the first variance row has three seeds, the others one."""
    for name, line in lines(preset).items():
        runs = [
            done(jobs, line.run, seed, name, partial(measured, samples=line.samples, seed=seed), samples=line.samples)
            for seed in range(line.seeds)
        ]
        yield Row(line.run.data, name, line.run.epochs, runs, paper=line.paper)


def measured(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """The three procedures, and what the means of the variance layers are worth."""
    found = procedures(model, data, samples, seed)
    alphas = log_alphas(model)
    if not alphas:
        return found
    return {**found, **swapped_accuracy(model, data, samples, seed), **recalibrated_accuracy(model, data), **alphas}
