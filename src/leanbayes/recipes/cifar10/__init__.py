"""All families on one trained network: a narrow ResNet-18 on CIFAR-10, plain, and Bayesian from there.

Plain networks are trained on 47,500 images with shifts and mirror images, for 18 epochs of a one-cycle schedule up to
a rate of 0.2; 2,500 images are held out. Every other row starts from the plain network of its seed and is trained on
for a few epochs on the same images, "trained on" without a method; only the deep ensemble is three plain networks.
Every method has its defaults, but that sparse ones have their density in small layers too, divided by Erdos and Renyi,
and train for longer at a higher rate; sparse subspaces have the prior of training from scratch and a weight of the KL.
The held-out images choose the temperature of the plain network and, as `fit` does, the amount of noise (sigma, the rate
of dropout, the spread of patches). The settings of sparse rows are the third that were tried, after test rows of the
first two had been seen (docs/papers/cifar10.md). No paper has this table.

accuracy, nll, ece (15 bins), brier: of the test images, over 16 samples. svhn AUROC: of the entropy, against 2,000
images of SVHN. corruption error, nll, ece: means over the common corruptions at severities 1, 3 and 5 of the first 250
test images. parameters: in use. bytes: of parameters and buffers. epochs: what the training cost beyond the plain
network's, in epochs of it; passes: what a prediction of 64 images costs, in passes of it (both timed in turns, one
thread).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ...method import Method
from ...training.fit import RECALIBRATION
from ..corrupted import Sweep
from ..experiment import Cell, Experiment
from ..jobs import Jobs
from ..results import Measured
from .measures import Measures, averaged
from .training import PATCHED, FineTuning, OneCycle


@dataclass(frozen=True)
class Contestant:
    """Methods by layer; how they are trained (see `FineTuning`); widths to measure the network at."""

    methods: Mapping[str, Method | None]
    epochs: int = 3
    lr: float = 0.02
    kl_weight: float | None = None
    seeds: int = 1
    widths: tuple[float, ...] = ()


def sparse(density: float) -> lb.SparseSubspace:
    """Of that density over all layers but the ends, with the prior of training from scratch."""
    return lb.SparseSubspace(density=density, fewest=0, allocation="erdos-renyi", prior=lb.Normal(std=0.3))


CONTESTANTS: dict[str, Contestant] = {
    "trained on": Contestant({}),
    "mean-field": Contestant({"*": lb.MeanField()}),
    "sparse subspace, 10 %": Contestant({"*": sparse(0.1)}, 12, 0.1, kl_weight=0.05, seeds=3),
    "RigL, 10 %": Contestant({"*": lb.Rigl(density=0.1, fewest=0, allocation="erdos-renyi")}, 12, 0.1, seeds=3),
    "ECMP": Contestant({PATCHED: lb.Patch(5, cross=True)}),
    "MC dropout": Contestant({"*": lb.Dropout()}),
    "last layer mean-field": Contestant({"fc": lb.MeanField(), "*": None}),
    "nested": Contestant({"*": lb.Nested()}, 4, widths=(0.25, 0.5, 1.0)),
    "sparse subspace, 5 %": Contestant({"*": sparse(0.05)}, 12, 0.1, kl_weight=0.05),
    "variance layer": Contestant({"layer4.1.conv2": lb.Variance(), "*": None}),
    "EMP": Contestant({PATCHED: lb.Patch(5, cross=False)}),
}
SMOKE = ("trained on", "sparse subspace, 10 %", "nested", "ECMP")


@dataclass(frozen=True)
class Setup:
    """plain: how the plain networks are trained. members: of the deep ensemble; each is a plain row."""

    plain: OneCycle
    measures: Measures = Measures()  # noqa: RUF009  (frozen)
    members: int = 3
    shorter: bool = False


def setup(preset: str) -> Setup:
    """What a preset trains and measures; "paper" stands for the whole width and more epochs."""
    if preset == "smoke":
        few = Measures(2, "not-digits/letters", 50, Sweep(20, ("gaussian_noise",), (3,)), 8, 1)
        limits: dict[str, Any] = {"limit": 300, "test_limit": 100, "held_out": 100, "augment": False}
        return Setup(plain("digits", 4, 2, **limits), few, members=2, shorter=True)
    if preset == "paper":
        return Setup(plain("cifar10", 64, 60), Measures(sweep=Sweep(1000), strange=10_000))
    return Setup(plain("cifar10", 16, 18))


def plain(data: str, width: int, epochs: int, **limits: Any) -> OneCycle:
    """A plain ResNet-18 of a width."""
    return OneCycle(data, "resnet18_cifar", {"width": width}, epochs=epochs, **limits)


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method, or one for each of its widths."""
    chosen = setup(preset)
    key = {**chosen.plain.key(), **chosen.measures.key()}
    label = f"{chosen.plain.data}, {chosen.plain.model}"
    yield Cell(label, "plain", "-", {**key, "row": "plain"}, partial(measure_plain, chosen), chosen.members)
    yield Cell(
        label, f"deep ensemble of {chosen.members}", "-", {**key, "row": "ensemble", "members": chosen.members},
        partial(measure_ensemble, chosen), None,
    )  # fmt: skip
    for name, one in CONTESTANTS.items():
        if chosen.shorter and name not in SMOKE:
            continue
        tuning = tuning_of(chosen, one)
        trained = {name: tuning.key()[name] for name in ("epochs", "lr", "kl_weight", "methods")}
        own = {**trained, "widths": list(one.widths)}
        seeds = 1 if chosen.shorter else one.seeds
        yield Cell(label, name, "-", {**key, "row": name, "tuning": own}, partial(measure, chosen, name, one), seeds)


def tuning_of(chosen: Setup, one: Contestant) -> FineTuning:
    """How a contestant is trained, from the plain network."""
    epochs = 1 if chosen.shorter else one.epochs
    options = {**vars(chosen.plain), "methods": one.methods, "epochs": epochs, "lr": one.lr, "kl_weight": one.kl_weight}
    return FineTuning(**options, plain=chosen.plain)


def measure_plain(chosen: Setup, jobs: Jobs, seed: int) -> Measured:
    """The plain network as it is, and at a temperature found on the held-out images."""
    data = chosen.plain.load()
    model, measures = chosen.plain.network_of(jobs, seed, data), chosen.measures
    costs = {**measures.size(model, data), "epochs": 0.0, "passes": 1.0}
    rows = [{"method": "plain", **measures.quality(measures.answer(model, seed), data), **costs}]
    lb.calibrate_(model, data.val, task="classification", progress=False)
    scaled = measures.quality(measures.answer(model, seed), data)
    return {"rows": [*rows, {"method": "plain, temperature-scaled", **scaled, **costs}]}


def measure_ensemble(chosen: Setup, jobs: Jobs, seed: int) -> Measured:
    """The mean of the plain networks of all seeds."""
    data, measures = chosen.plain.load(), chosen.measures
    models = [chosen.plain.network_of(jobs, member, data) for member in range(chosen.members)]
    answer = averaged([measures.answer(model, 0) for model in models])
    size = {name: chosen.members * value for name, value in measures.size(models[0], data).items()}
    return {
        **measures.quality(answer, data),
        **size,
        "epochs": float((chosen.members - 1) * chosen.plain.epochs),
        "passes": float(chosen.members),
    }


def measure(chosen: Setup, name: str, one: Contestant, jobs: Jobs, seed: int) -> Measured:
    """A contestant, trained on from the plain network of its seed, at its widths if it has any."""
    data, tuning = chosen.plain.load(), tuning_of(chosen, one)
    model = tuning.network_of(jobs, seed, data)
    costs = chosen.measures.costs(model, tuning, data, tuning.epochs)
    rows = [] if one.widths else [{**quality_of(chosen, model, data, seed), **costs}]
    for width in one.widths:  # training drew them all: it costs the same for each
        lb.set_width_(model, width)
        lb.recalibrate_(model, data.train, data=RECALIBRATION)
        own = {**chosen.measures.costs(model, tuning, data, tuning.epochs), "epochs": costs["epochs"]}
        rows.append({"method": f"{name}, width {100 * width:g} %", **quality_of(chosen, model, data, seed), **own})
    return {"rows": rows}


def quality_of(chosen: Setup, model: nn.Module, data: DataSet, seed: int) -> dict[str, Any]:
    """What the averaged prediction of a network is worth."""
    return chosen.measures.quality(chosen.measures.answer(model, seed), data)


EXPERIMENT = Experiment("cifar10", cells)
