"""Not in the paper: patches on a network that is trained already, by how far from it the components start.

The vanilla network of `patch-calibration` gets patches on BatchNorm and on its output, `Patch` at its defaults but for
the perturbation and the prior (weight decay instead), and is trained for a quarter of its epochs more. "vanilla,
trained on" had these epochs too. The figures are of test images, and the default of `Patch.perturbation` is the one
that did best among them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import nn

import leanbayes as lb

from ...methods.patch import norms_and_output
from ..experiment import Cell, Experiment
from ..figures.patch import sweep
from ..jobs import Jobs
from ..results import Metrics
from ..training import trained_network
from .networks import PatchSetup, PatchTraining, digits, key, probabilities, published, resnet, scores

METHODS = ("EMP (BN+out)", "ECMP (BN+out)")


# a setup, how many epochs its network is trained on, and the perturbations
PERTURBATIONS = (0.03, 0.1, 0.3, 0.5, 1.0)
SETUPS: dict[str, tuple[PatchSetup, int, tuple[float, ...]]] = {
    "smoke": (digits(), 1, (0.1, 0.5)),
    "cpu": (resnet(samples=20, seeds=1), 5, PERTURBATIONS),
    "paper": (published(), 100, PERTURBATIONS),
}


def cells(preset: str) -> Iterator[Cell]:
    """The vanilla network as it was, and trained on, then a row for every method and perturbation."""
    setup, more, perturbations = SETUPS[preset]
    found: list[tuple[str, str | float, float, int]] = [
        ("vanilla", "as it was", 0.0, 0),
        ("vanilla", "trained on", 0.0, more),
    ]
    found += [(method, size, size, more) for method in METHODS for size in perturbations]
    for method, name, size, epochs in found:
        measure = partial(measured, setup, replace(setup.of(method), epochs=epochs), size)
        where = key(setup, method, "patch-pretrained", **{"perturbation": size, "tuned epochs": epochs})
        yield Cell(setup.label, method, name, where, measure, setup.seeds)


def measured(setup: PatchSetup, training: PatchTraining, size: float, jobs: Jobs, seed: int) -> Metrics:
    """Scores on the test part of the vanilla network, patched and trained on."""
    data = training.load()
    model = patched(trained_network(jobs, setup.of("vanilla"), seed, data), training, size, seed)
    if training.epochs:
        training.fit_(model, seed, data)
    inputs, targets = data.test.tensors
    return scores(probabilities(model, inputs, setup.samples, seed), targets)


def patched(vanilla: nn.Module, training: PatchTraining, perturbation: float, seed: int) -> nn.Module:
    """A copy of the network with the patches of the method; itself, copied, for the vanilla one."""
    model = copy.deepcopy(vanilla)
    if training.method != "vanilla":
        torch.manual_seed(seed)
        patch = lb.Patch(
            training.components, cross=training.method.startswith("ECMP"), prior=None, perturbation=perturbation
        )
        lb.bayesianize_(model, norms_and_output(model, patch))
    return model


FIGURE = partial(sweep, "Patches on a trained network", "perturbation")
EXPERIMENT = Experiment("patch-pretrained", cells, figure=FIGURE)
