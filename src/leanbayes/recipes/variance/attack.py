"""Targeted attacks on ensembles (variance networks, figure 2): success rate and entropy, iteration by iteration.

A plain network, dropout at its means and as an ensemble, a deep ensemble of five, a variance network and an ensemble of
five of those; none is trained against attacks. The attacker follows the gradient of the ensemble's prediction, averaged
over draws that are new in every iteration (50 on the cpu preset). A single network is member 0 of its ensemble:
training in turn is training apart.

The paper attacks a VGG-like network on CIFAR-10 with a step of 0.5 and does not say of what; 0.5 / 255 is the
plausible reading (the paper preset). MNIST is black and white and takes larger steps: 4 / 255 on the cpu preset, 20 of
which may change a pixel by 0.31. The figure's curves are not tabulated, so there are no numbers of the paper's here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ...evaluation.attack import Attack, attack
from ...methods import Dropout, Ensemble, Method, Variance
from ...methods.ensemble.layer import member
from ..experiment import Cell, Experiment, Results, rows_of_cells
from ..figures.attack import attacks
from ..jobs import Jobs
from ..results import Measured, Point, Row
from ..training import Training

FAMILIES = {
    "plain": ("plain network", "deep ensemble"),
    "dropout": ("dropout, at the means", "dropout"),
    "variance": ("variance network", "variance ensemble"),
}
ORDER = ("plain network", "dropout, at the means", "dropout", "deep ensemble", "variance network", "variance ensemble")


@dataclass(frozen=True)
class AttackSetup:
    """What a preset trains and how it is attacked.

    training: of the plain network, its epochs those of each member. dropout, variance: what which layers are given.
    options, lr_scale: of the variance network, and of its log alpha. step: in units of 1/255. limit: how many test
    images are attacked.
    """

    training: Training
    dropout: Mapping[str, Method]
    variance: Mapping[str, Method]
    options: Mapping[str, Any] = field(default_factory=dict)
    lr_scale: float | None = None
    members: int = 5
    step: float = 4.0
    iterations: int = 20
    samples: int = 10
    limit: int = 500
    seeds: int = 1


LENET = {"batch_norm": True, "bias": False}
MLP = {"hidden": (64, 64), "batch_norm": True, "bias": False}
OWN_DROPOUT = {"drop*": Dropout()}  # the network's own stays on while ensembling
VGG_VARIANCE = {name: Variance(log_alpha=-5.0) for name in ("conv11", "conv12", "conv13", "dense1")}

SETUPS = {
    "smoke": AttackSetup(
        Training("digits", "mlp", MLP, epochs=3, lr=3e-3, batch_size=50),
        dropout={"4": Dropout(0.5), "7": Dropout(0.5)},
        variance={"4": Variance(log_alpha=5.0)},
        members=2,
        step=16.0,
        iterations=3,
        samples=4,
        limit=50,
    ),
    "cpu": AttackSetup(
        Training("mnist", "lenet5", LENET, epochs=4),
        dropout={"dense1": Dropout(0.5), "dense2": Dropout(0.5)},
        variance={"dense1": Variance(log_alpha=12.0)},
        lr_scale=1e-3,
        samples=50,
        limit=200,
        seeds=3,
    ),
    "paper": AttackSetup(
        Training("cifar10", "vgg_like", epochs=200, batch_size=100, augment=True),
        dropout=OWN_DROPOUT,
        variance={**VGG_VARIANCE, **OWN_DROPOUT},
        options={"dropout_last": False},
        lr_scale=1e-2,
        step=0.5,
        limit=10_000,
    ),
}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every family of networks, which makes a row for every method and iteration."""
    setup = SETUPS[preset]
    attack = {"step": setup.step, "iterations": setup.iterations, "samples": setup.samples, "limit": setup.limit}
    for family in FAMILIES:
        key = {"measured": "attack", "family": family, "run": training(setup, family).key(0), **attack}
        yield Cell(setup.training.data, family, "attacked", key, partial(measured, setup, family), setup.seeds)


def rows(results: Results) -> list[Row]:
    """A row for every method and iteration; iteration 0 is before the attack."""
    return sorted(rows_of_cells(results), key=lambda row: ORDER.index(row.method))


def training(setup: AttackSetup, family: str) -> Training:
    """The training of a family: an ensemble takes as many times the epochs as it has members."""
    members, run = setup.members, setup.training
    if family == "dropout":
        return replace(run, methods=setup.dropout)
    methods: dict[str, Method] = {}
    if family == "variance":
        run = replace(run, options={**run.options, **setup.options}, lr_scale=setup.lr_scale)
        methods = {
            n: Ensemble(members, m, init="fresh") if isinstance(m, Variance) else m for n, m in setup.variance.items()
        }
    return replace(run, methods={**methods, "*": Ensemble(members, init="fresh")}, epochs=members * run.epochs)


def measured(setup: AttackSetup, family: str, jobs: Jobs, seed: int) -> Measured:
    """Train the networks of a family and attack them as one and as several."""
    data = setup.training.load()
    model = training(setup, family).train(seed, data)
    single, several = FAMILIES[family]
    at_means = family == "dropout"
    models: list[tuple[str, nn.Module, bool]] = [
        (single, model if at_means else member(model, 0), at_means),
        (several, model, False),
    ]
    found: list[Point] = []
    for name, network, mean_only in models:
        curve = _attacked(setup, network, data, seed, mean_only)
        for at in range(setup.iterations + 1):
            values = {metric: curve[metric][at] for metric in ("success", "entropy", "accuracy")}
            found.append({"method": name, "setting": at, **values, "clean_entropy": curve["entropy"][0]})
    return {"rows": found}


def _attacked(setup: AttackSetup, model: nn.Module, data: DataSet, seed: int, mean_only: bool) -> dict[str, Any]:
    pixels = lb.Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
    images = tuple(part[: setup.limit] for part in data.test.tensors)
    config = Attack(
        step=setup.step,
        iterations=setup.iterations,
        samples=setup.samples,
        limit=setup.limit,
        mean_only=mean_only,
        seed=seed,
    )
    return attack(model, images, config, pixels=pixels, task="classification", progress=False).curve


EXPERIMENT = Experiment("variance-attack", cells, rows, attacks)
