"""Tables 1 and 2 of sparse subspace VI: beside dense VI, and beside other ways to a sparse Bayesian network.

Variational dropout and structured pruning (SBP) end where their objectives take them and are measured once pruned;
RigL has no uncertainty. AEB and mBNN are cited, not run. Figures in brackets are those of ResNet-18 after 200 epochs;
the cpu preset trains a perceptron and LeNet-5 on Fashion-MNIST for a few epochs. The paper's two figures for
95 % on CIFAR-10 differ in the second digit (93.69 in table 1, 93.74 in table 2): table 2's stand here.

Erdos-Renyi: as many weights, more of them in small layers; not in the paper, whose layers all keep the same share.
density: the share of weights left, the dense stem included. training FLOPs, x dense VI: nominal, as the paper counts;
for SBP, whose noise is on channels, one pass where the paper's 67.1e15 counts two.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

from ...data import DataSet
from ..experiment import Cell, Experiment
from ..paper import printed
from ..results import Metrics
from .measures import pruned_, quality, size
from .networks import KL_WEIGHTS, SparseSetup, SparseTraining, digits, lenet, mlp, published

SETUPS: dict[str, tuple[SparseSetup, ...]] = {
    "smoke": (digits(),),
    "cpu": (mlp(kl_weights=KL_WEIGHTS), lenet(seeds=1, kl_weights=KL_WEIGHTS)),
    "paper": (published(), published("cifar100")),
}


def contestants(setup: SparseSetup) -> dict[str, tuple[SparseTraining, int]]:
    """The trainings of a table by name, with their seeds: three where the comparison is ours, one for the others."""
    few = min(setup.seeds, 1 if setup.training.epochs < 100 else 3)  # of methods that are not compared closely
    found = {
        "dense VI": (setup.dense(), setup.seeds),
        "variational dropout": (setup.variational_dropout(), few),
        "SBP": (setup.structured(), few),
        "RigL, 10 %": (setup.rigl(0.1), setup.seeds),
        "RigL, 5 %": (setup.rigl(0.05), setup.seeds),
        "sparse subspace, 10 %": (setup.subspace(0.1), setup.seeds),
        "sparse subspace, 5 %": (setup.subspace(0.05), setup.seeds),
        "sparse subspace, 10 %, Erdos-Renyi": (setup.subspace(0.1, allocation="erdos-renyi"), setup.seeds),
    }
    return {name: line for name, line in found.items() if name not in setup.without}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method and network; the setting is the number of epochs."""
    for setup in SETUPS[preset]:
        data = setup.training.data
        for name, (training, seeds) in contestants(setup).items():
            measure, paper = partial(measured, training), printed("sparse-accuracy", data, name)
            yield setup.cell(training, name, name, training.epochs, measure=measure, seeds=seeds, paper=paper)
        for name, found in cited(data).items() if preset == "paper" else ():
            yield Cell(data, name, setup.training.epochs, seeds=0, paper=found)


def cited(data: str) -> dict[str, dict[str, float]]:
    """The figures of methods that the paper cites and that are not run here."""
    return {name: found for name, found in printed("sparse-accuracy", data).items() if name.endswith("(cited)")}


def measured(training: SparseTraining, model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Accuracy, calibration, size and cost; of the pruned network where the method prunes."""
    pruned_(model)
    return {**quality(model, data, samples, seed), **size(model, data, training)}


EXPERIMENT = Experiment("sparse-accuracy", cells)
