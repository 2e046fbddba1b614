"""All families on one trained network: a narrow ResNet-18 on CIFAR-10, plain, and Bayesian from there.

Plain networks are trained on 47,500 images with shifts and mirror images, for 12 epochs of a one-cycle schedule up to
a rate of 0.2 and 4 more up to 0.05; 2,500 images are held out. Every other row starts from the plain network of its
seed and is trained on for a few epochs on the same images, "trained on" without a method; only the deep ensemble is
three plain networks. The amount of noise is tuned on the held-out images, as `fit` does; temperatures, the rate of
dropout and the perturbation of patches have the lowest loss there among the candidates. The test images chose
nothing. No paper has this table.

accuracy, nll, ece (15 bins), brier: of the test images, over 16 samples. svhn AUROC: of the entropy, against 2,000
images of SVHN. corruption error, nll, ece: means over the common corruptions at severities 1, 3 and 5 of the first 250
test images. parameters: in use. bytes: of parameters and buffers. epochs: what the training cost beyond the plain
network's, in epochs of it; passes: what a prediction of 64 images costs, in passes of it (both timed in turns, one
thread). The setting is the candidate that was chosen, where there were several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
    """Rules by candidate, one of them if nothing is chosen; epochs of training; widths to measure it at."""

    candidates: Mapping[str, Mapping[str, Method | None]]
    epochs: int = 3
    seeds: int = 1
    widths: tuple[float, ...] = ()


def everywhere(method: Method) -> dict[str, Mapping[str, Method | None]]:
    """One candidate: the method for all layers."""
    return {"-": {"*": method}}


def patched(cross: bool) -> dict[str, Mapping[str, Method | None]]:
    """Norm layers and the output patched, by perturbation."""
    return {f"perturbation {p:g}": {PATCHED: lb.Patch(5, cross=cross, perturbation=p)} for p in (0.1, 0.3)}


CONTESTANTS: dict[str, Contestant] = {
    "trained on": Contestant({"-": {}}),
    "MC dropout": Contestant({f"rate {rate:g}": {"*": lb.Dropout(rate)} for rate in (0.02, 0.1)}),
    "last layer mean-field": Contestant({"-": {"fc": lb.MeanField(), "*": None}}),
    "mean-field": Contestant(everywhere(lb.MeanField())),
    "variance layer": Contestant({"-": {"layer4.1.conv2": lb.Variance(), "*": None}}),
    "sparse subspace, 10 %": Contestant(everywhere(lb.SparseSubspace(density=0.1, fewest=0)), 4, seeds=3),
    "sparse subspace, 5 %": Contestant(everywhere(lb.SparseSubspace(density=0.05, fewest=0)), 4),
    "RigL, 10 %": Contestant(everywhere(lb.Rigl(density=0.1, fewest=0)), 4, seeds=3),
    "nested": Contestant(everywhere(lb.Nested()), 4, widths=(0.25, 0.5, 1.0)),
    "ECMP": Contestant(patched(cross=True)),
    "EMP": Contestant(patched(cross=False)),
}
SMOKE = ("trained on", "sparse subspace, 10 %", "nested", "ECMP")


@dataclass(frozen=True)
class Setup:
    """plain: the second cycle of the plain networks. members: of the deep ensemble; each is a plain row."""

    plain: FineTuning
    measures: Measures = Measures()  # noqa: RUF009  (frozen)
    members: int = 3
    shorter: bool = False


def setup(preset: str) -> Setup:
    """What a preset trains and measures; "paper" stands for the whole width and more epochs."""
    if preset == "smoke":
        few = Measures(2, "not-digits/letters", 50, Sweep(20, ("gaussian_noise",), (3,)), 8, 1)
        limits: dict[str, Any] = {"limit": 300, "test_limit": 100, "held_out": 100, "augment": False}
        return Setup(in_two_cycles("digits", 4, 1, 1, **limits), few, members=2, shorter=True)
    if preset == "paper":
        return Setup(in_two_cycles("cifar10", 64, 45, 15), Measures(sweep=Sweep(1000), strange=10_000))
    return Setup(in_two_cycles("cifar10", 16, 12, 4))


def in_two_cycles(data: str, width: int, first: int, second: int, **limits: Any) -> FineTuning:
    """A plain ResNet-18 of a width, trained for some epochs up to a rate of 0.2, and for some up to 0.05."""
    start = OneCycle(data, "resnet18_cifar", {"width": width}, epochs=first, **limits)
    return FineTuning(data, start.model, start.options, epochs=second, lr=0.05, plain=start, **limits)


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method, or one for each of its widths."""
    chosen = setup(preset)
    key = {**chosen.plain.key(), **chosen.measures.key()}
    label = f"{chosen.plain.data}, {chosen.plain.model}"
    plain = partial(measure_plain, chosen)
    yield Cell(label, "plain", "-", {**key, "row": "plain"}, plain, chosen.members)
    yield Cell(
        label, f"deep ensemble of {chosen.members}", "-", {**key, "row": "ensemble", "members": chosen.members},
        partial(measure_ensemble, chosen), None,
    )  # fmt: skip
    for name, one in CONTESTANTS.items():
        if chosen.shorter and name not in SMOKE:
            continue
        tunings = {what: key_of(tuning) for what, tuning in tunings_of(chosen, one).items()}
        own = {**key, "row": name, "tunings": tunings, "widths": list(one.widths)}
        seeds = 1 if chosen.shorter else one.seeds
        yield Cell(label, name, "-", own, partial(measure, chosen, name, one), seeds)


def key_of(tuning: FineTuning) -> dict[str, Any]:
    """What the candidates differ in."""
    return {"epochs": tuning.epochs, "lr": tuning.lr, "methods": tuning.key()["methods"]}


def tunings_of(chosen: Setup, one: Contestant) -> dict[str, FineTuning]:
    """How each candidate is trained, from the plain network."""
    plain, epochs = chosen.plain, 1 if chosen.shorter else one.epochs
    return {
        what: replace(plain, methods=rules, plain=plain, epochs=epochs, lr=0.02)
        for what, rules in one.candidates.items()
    }


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
    cycles = chosen.plain.epochs + (chosen.plain.plain.epochs if chosen.plain.plain else 0)
    return {
        **measures.quality(answer, data),
        **size,
        "epochs": float((chosen.members - 1) * cycles),
        "passes": float(chosen.members),
    }


def measure(chosen: Setup, name: str, one: Contestant, jobs: Jobs, seed: int) -> Measured:
    """A contestant: its candidates trained, the best on the held-out images measured."""
    data, tunings = chosen.plain.load(), tunings_of(chosen, one)
    losses = {what: held_out_loss(chosen, tuning, data, jobs, seed) for what, tuning in tunings.items()}
    best = min(losses, key=lambda what: losses[what])
    tuning = tunings[best]
    model = tuning.network_of(jobs, seed, data)
    costs = chosen.measures.costs(model, tuning, data, tuning.epochs)
    rows = [] if one.widths else [{"setting": best, **quality_of(chosen, model, data, seed), **costs}]
    for width in one.widths:  # training drew them all: it costs the same for each
        lb.set_width_(model, width)
        lb.recalibrate_(model, data.train, data=RECALIBRATION)
        own = {**chosen.measures.costs(model, tuning, data, tuning.epochs), "epochs": costs["epochs"]}
        row = {"method": f"{name}, width {100 * width:g} %", "setting": best}
        rows.append({**row, **quality_of(chosen, model, data, seed), **own})
    return {"rows": rows}


def held_out_loss(chosen: Setup, tuning: FineTuning, data: DataSet, jobs: Jobs, seed: int) -> float:
    """The loss of a trained candidate on the held-out images."""
    inputs, targets = data.val.tensors
    probs = chosen.measures.answer(tuning.network_of(jobs, seed, data), seed)(inputs)
    return float(-probs[range(len(targets)), targets].clamp_min(1e-12).log().mean())


def quality_of(chosen: Setup, model: nn.Module, data: DataSet, seed: int) -> dict[str, Any]:
    """What the averaged prediction of a network is worth."""
    return chosen.measures.quality(chosen.measures.answer(model, seed), data)


EXPERIMENT = Experiment("cifar10", cells)
