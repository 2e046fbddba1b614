"""The library's methods side by side, on one network.

No paper's table, but the yardstick for those that follow. The cpu preset has the network of `leanbayes demo` and all
digits; "paper" stands here for a longer run, LeNet-5 on MNIST.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

import leanbayes as lb

from ..data import load, loaders
from ..methods import Dropout, Ensemble, MeanField, Method, Nested, Patch, SparseSubspace, Variance, VariationalDropout
from ..methods.nested import WEIGHTS
from ..models import build
from ..models.for_data import fitting
from ..priors import Normal
from .experiment import Cell, Experiment
from .jobs import Jobs, settings_as_given
from .results import Measured, Metrics


@dataclass(frozen=True)
class Contestant:
    """A method (or rules), the weight of its KL, the share of training over which that weight rises, how many times as
    long it is trained, and the widths at which a nested network is evaluated, a row each.
    """

    method: Method | Mapping[str, Method] | None
    kl_weight: float = 1.0
    warmup: float = 0.0
    rounds: int = field(default=1, repr=False)
    widths: tuple[float, ...] = field(default=(), repr=False)

    def names(self, name: str) -> list[str]:
        """Of its rows.

        >>> Contestant(None, widths=(0.25, 1.0)).names("nested")
        ['nested, width 25 %', 'nested, width 100 %']
        """
        return [f"{name}, width {100 * width:g} %" for width in self.widths] or [name]


CONTESTANTS: dict[str, Contestant] = {
    "plain network": Contestant(None),
    "MC dropout": Contestant(Dropout(0.2)),
    "mean-field": Contestant(MeanField(std=0.02, prior=Normal())),
    "mean-field, tempered": Contestant(MeanField(std=0.02, prior=Normal()), kl_weight=0.1),
    "variational dropout": Contestant(VariationalDropout(log_alpha=-5.0), warmup=0.5),
    # the first dense layer; it starts beyond alpha = 1, which from -5 would take longer than these runs last
    "variance network": Contestant({"dense1": Variance(log_alpha=2.0)}, warmup=0.5),
    "deep ensemble of 3": Contestant(Ensemble(members=3, init="fresh"), rounds=3),  # as many epochs for each member
    "sparse subspace, 10 %": Contestant(SparseSubspace(density=0.1, interval=50, fewest=32), kl_weight=0.1),
    "patched output": Contestant({"dense2": Patch(components=5, perturbation=0.3)}, kl_weight=0.1),
    # all widths at once take longer
    "nested": Contestant(
        Nested(groups=16, base_groups=1, weights=dataclasses.replace(WEIGHTS, log_alpha=-3.0)),
        kl_weight=0.1,
        rounds=2,
        widths=(0.25, 0.5, 1.0),
    ),
}


@dataclass(frozen=True)
class BaselineSetup:
    """What is trained on what, and for how long."""

    data: str
    model: str
    ood: tuple[str, ...]
    epochs: int
    samples: int = 32
    batch_size: int = 64
    lr: float = 2e-3
    seeds: int = 1


SETUPS = {
    "smoke": BaselineSetup("digits", "convnet", ("not-digits/letters",), epochs=1, samples=4),
    "cpu": BaselineSetup("digits", "convnet", ("not-digits/letters", "not-digits/photos"), epochs=40, seeds=5),
    "paper": BaselineSetup("mnist", "lenet5", ("fashion-mnist",), epochs=20, batch_size=128, lr=1e-3, seeds=3),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method, or one for each of its widths; the setting is the number of samples."""
    setup = SETUPS[preset]
    for name, contestant in CONTESTANTS.items():
        key: dict[str, Any] = {"contestant": repr(contestant), "setting": asdict(setup)}
        key |= {"rounds": contestant.rounds} if contestant.rounds > 1 else {}
        key |= {"widths": list(contestant.widths)} if contestant.widths else {}
        yield Cell(setup.data, name, setup.samples, key, partial(measured, name, setup), setup.seeds)


def measured(name: str, setup: BaselineSetup, jobs: Jobs, seed: int) -> Measured:
    """The metrics of the table; a row for every width where there are several."""
    found = [headline(one) for one in train_and_evaluate(name, setup, seed, progress=False)]
    rows = CONTESTANTS[name].names(name)
    if len(rows) == 1:
        return found[0]
    return {"rows": [{"method": row, **metrics} for row, metrics in zip(rows, found, strict=True)]}


def headline(result: lb.Evaluation) -> Metrics:
    """The metrics of the table."""
    ranks = {
        f"{key.removeprefix('ood.').removesuffix('.entropy.auroc')} AUROC": value
        for key, value in result.metrics.items()
        if key.endswith(".entropy.auroc")
    }
    quality = {name: result.metrics[name] for name in ("accuracy", "nll", "brier", "ece")}
    return {**quality, **ranks, "parameters": float(result.cost["parameters"])}


def train_and_evaluate(name: str, setup: BaselineSetup, seed: int, *, progress: bool = True) -> Iterator[lb.Evaluation]:
    """One contestant, trained from scratch and evaluated on the test data, at each of its widths."""
    contestant, data = CONTESTANTS[name], load(setup.data)
    parts = loaders(data, setup.batch_size)
    torch.manual_seed(seed)
    network = fitting(setup.model, data)
    model = build(network["name"], **network["options"])
    if contestant.method is not None:
        lb.bayesianize_(model, contestant.method)  # type: ignore[arg-type]
    epochs = contestant.rounds * setup.epochs
    steps = int(contestant.warmup * epochs * len(parts["train"]))
    with settings_as_given():
        history = lb.fit(
            model,
            parts["train"],
            val=parts["val"],
            tune=False,
            epochs=epochs,
            lr=setup.lr,
            kl_weight=lb.warmup(0, contestant.kl_weight, steps=steps) if steps else contestant.kl_weight,
            scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs),
            seed=seed,
            recalibrate=False,
            progress=progress,
        )
    others = {o: DataLoader(load(o, parts="test", normalise=data).test, 256) for o in setup.ood}
    for row, width in zip(contestant.names(name), contestant.widths or (None,), strict=True):
        if width is not None:
            lb.set_width_(model, width)
        yield lb.evaluate(
            model,
            parts["test"],
            ood=others,
            samples=setup.samples,
            seed=seed,
            history=history,
            name=row,
            progress=progress,
        )


EXPERIMENT = Experiment("baselines", cells)
