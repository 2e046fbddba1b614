"""What the experiments of nested posteriors share: the networks, how they are trained, and what is measured at a width.

One network of every kind is trained and evaluated at many widths; the experiments share it (`Jobs.network`). As the
authors have it, the first convolution is deterministic, the others are ordered, and the dense layers are random without
an order. Before an evaluation at a width, BatchNorm's statistics are re-estimated there: under noise, or at the means
where the means are evaluated.

The short presets train with Adam at 1e-3 that falls linearly to 0, for 30 epochs on 10,000 images. Another 2,000 are
held out for temperatures. For so short a training log alpha starts at -3, not at the authors' -1, and the KL has a
weight of 0.1. The paper preset has the authors' natural gradients
(nested dropout: plain ones), 1.5 times the channels of which two thirds are kept, and 600 epochs; a network trained
alone 240. What else differs from their code is the library's default: the tails have a weight of their own and start
uniform, and all layers share one draw.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import leanbayes as lb

from ...data import DataSet, load
from ...evaluation.metrics import calibration, classification
from ...evaluation.metrics.ood import aupr, auroc
from ...methods.nested import WEIGHTS
from ..experiment import Cell
from ..results import Metrics
from ..training import ROWS, Training, network_cell, reset_, weights_in_all

NESTED = ("BN3", "FN3")


@dataclass(frozen=True)
class NestedTraining(Training):
    """One training run; see `Training` for the other fields.

    trained: nested ("BN3", "FN3"), or a network of its own at a width ("IBNN", "SVB"). cut: the method that gives such
    a network the shape that a nested one is cut to; not part of the key, since other fields tell it.
    keep: of nested channels after training. natural: the authors' optimisers and schedules.
    """

    trained: str = "BN3"
    width: float = 1.0
    kl_weight: float = 0.1
    keep: float = 1.0
    natural: bool = False
    cut: Mapping[str, Any] = field(default_factory=dict)

    def key(self, seed: int | None = None) -> dict[str, Any]:
        """All that the trained network depends on."""
        return {name: value for name, value in super().key(seed).items() if name != "cut"}

    def network(self, data: DataSet) -> nn.Module:
        """The plain network, newly initialised; below width 1 in the shape that a nested one is cut to."""
        model = super().network(data)
        if self.trained in NESTED or (self.width == 1 and self.keep == 1):
            return model
        rules: Any = dict(self.cut)
        lb.bayesianize_(model, rules)
        if self.keep < 1:
            lb.truncate_(model, self.keep)
        small = lb.extract(model, width=self.width)
        return reset_(small)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam, or SGD with the authors' natural gradients (nested dropout: plain ones)."""
        if not self.natural:
            return super().optimizer(model)
        kind = torch.optim.SGD if self.trained == "FN3" else lb.NaturalGradientSGD
        return kind(model.parameters(), lr=self.lr, momentum=0.9)

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The weight of the KL and the schedule; alone, with natural gradients, a network has fewer epochs."""
        if not self.natural:
            return {**super().fit_options(data), "kl_weight": self.kl_weight}
        n = self.epochs
        every, by, epochs = (n // 4, 0.1, n) if self.trained in NESTED else (n // 15, 0.3, n * 2 // 5)
        steps = partial(torch.optim.lr_scheduler.StepLR, step_size=every, gamma=by)
        return {"scheduler": steps, "kl_weight": self.kl_weight, "epochs": epochs}

    def train(self, seed: int, data: DataSet, **options: Any) -> nn.Module:
        """A new network, trained, and cut to the part of the channels that is kept."""
        model = super().train(seed, data, **options)
        if self.trained in NESTED and self.keep < 1:
            lb.truncate_(model, self.keep)
        return model


@dataclass(frozen=True)
class NestedSetup:
    """A network on its data, and how it is nested.

    training: of the plain network. stem: the layer that stays deterministic; ordered, dense: names of the others.
    groups, base_groups: of the ordered layers. widths: of the evaluation. alone: those at which networks are trained on
    their own. other: data of another domain. held_out: images for temperatures. kl_weight, tail_weight: of the two
    terms of the KL. log_alpha: where the noise of random weights starts. clean: images that re-estimate BatchNorm's
    statistics; None for all. keep: of nested channels after training. natural: the authors' optimisers and schedules.
    label: of the rows; by default the name of the data.
    """

    training: Training
    other: str
    stem: str = "conv1"
    ordered: str = "conv*"
    dense: str = "dense*"
    groups: int = 16
    base_groups: int = 1
    widths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    alone: tuple[float, ...] = (0.25, 1.0)
    held_out: int = 2000
    kl_weight: float = 0.1
    log_alpha: float = -3.0
    tail_weight: float = 0.02
    clean: int | None = 5000
    keep: float = 1.0
    natural: bool = False
    seeds: int = 3
    samples: int = 6
    label: str = ""

    def methods(self, kind: str) -> dict[str, Any]:
        """What which layers are given: a nested posterior, fixed tails, random weights, or weights that may vanish."""
        size = {"groups": self.groups, "base_groups": self.base_groups}
        random = replace(WEIGHTS, log_alpha=self.log_alpha)
        if kind == "BN3":
            nested = lb.Nested(**size, tail_weight=self.tail_weight, weights=random)  # type: ignore[arg-type]
            return {self.stem: None, self.ordered: nested, self.dense: random}
        if kind == "FN3":
            fixed = lb.NestedDropout(**size, tails="uniform")  # type: ignore[arg-type]
            return {self.stem: None, self.ordered: fixed, "*": None}
        return {self.stem: None, "*": lb.VariationalDropout(log_alpha=-5.0) if kind == "SVB" else random}

    def of(self, kind: str, width: float = 1.0) -> NestedTraining:
        """The training of a kind of network, at a width if it is trained alone."""
        own = {"kl_weight": self.kl_weight, "keep": self.keep, "natural": self.natural, "cut": self.methods("FN3")}
        fields: dict[str, Any] = {**vars(self.training), "methods": self.methods(kind), **own}
        return NestedTraining(**fields, trained=kind, width=width)

    def cell(self, kind: str, method: str, setting: Any, measure: Any, width: float = 1.0, **options: Any) -> Cell:
        """A network of a kind, measured by ``measure(model, data, seed)``; options: those of `network_cell`."""
        shared: dict[str, Any] = {
            "samples": self.samples,
            "other": self.other,
            "clean": self.clean,
            "base": self.base_groups,
        }
        training, label = self.of(kind, width), self.label or self.training.data
        return network_cell(label, training, method, setting, measure, self.seeds, **shared, **options)


SMALL = Training("cifar10", "vgg_small", epochs=30, batch_size=100, limit=10_000, test_limit=5000)


def digits(**changes: Any) -> NestedSetup:
    """A small convolutional network on the embedded digits, for the smoke presets."""
    training = Training(
        "digits", "vgg_small", {"width": 0.5, "hidden": 16}, epochs=2, lr=3e-3, batch_size=50, limit=600
    )
    short = NestedSetup(
        training, "not-digits/letters", groups=4, widths=(0.25, 1.0), held_out=200, clean=200, seeds=1, samples=2
    )
    return replace(short, **changes)


def cifar(**changes: Any) -> NestedSetup:
    """A small VGG on 10,000 images of CIFAR-10, beside SVHN."""
    return replace(NestedSetup(SMALL, "svhn"), **changes)


def fashion(**changes: Any) -> NestedSetup:
    """The same on Fashion-MNIST, beside MNIST."""
    return replace(NestedSetup(replace(SMALL, data="fashion-mnist"), "mnist"), **changes)


def published(**changes: Any) -> NestedSetup:
    """VGG11 for 600 epochs on CIFAR-10, in 48 groups of which 32 are kept and two are always on."""
    training = Training(
        "cifar10", "vgg11_bn", {"width": 1.5}, epochs=600, lr=0.1, batch_size=512, augment=True, limit=45_000
    )
    widths = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
    large = NestedSetup(
        training, "svhn", groups=48, base_groups=2, widths=widths, alone=widths, held_out=5000, clean=None
    )
    return replace(large, **{"keep": 2 / 3, "natural": True, "log_alpha": -1.0, **changes})


SETUPS: dict[str, tuple[NestedSetup, ...]] = {
    "smoke": (digits(),),
    "cpu": (fashion(), cifar()),
    "paper": (published(),),
}


def at_width(
    setup: NestedSetup,
    model: nn.Module,
    data: DataSet,
    width: float | Mapping[str, float] | None,
    *,
    means: bool = False,
    clean: Any = "all",
) -> nn.Module:
    """A copy that runs at a width, its BatchNorm statistics collected there; None keeps on sampling widths.

    clean: images to collect them from; by default those of the setup.
    """
    found = copy.deepcopy(model)
    if width is not None:
        lb.set_width_(found, width)
    images = setup.clean if clean == "all" else clean
    return lb.recalibrate_(found, data.train, at="means" if means else "samples", data=images)


def quality(setup: NestedSetup, model: nn.Module, data: DataSet, seed: int, **options: Any) -> Metrics:
    """Accuracy, loss and calibration on the test part, and how well entropy detects the other domain."""
    options = {"chunk": ROWS * setup.samples, **options}
    if not options.get("mean_only"):
        options |= {"samples": setup.samples, "seed": seed}
    inputs, targets = data.test.tensors
    other = load(setup.other, parts="test", normalise=data).test.tensors[0][: len(inputs)]
    inside, outside = (lb.predict(model, x, **options) for x in (inputs, other))
    return {
        "accuracy": classification.accuracy(inside.probs, targets),
        "nll": classification.nll(inside.probs, targets),
        "ece": calibration.ece(inside.probs, targets, bins=15, min_count=0),
        "AUPR": aupr(inside.entropy, outside.entropy),
        "AUROC": auroc(inside.entropy, outside.entropy),
    }


def share_of_weights(model: nn.Module, width: float | Mapping[str, float]) -> float:
    """The part of a nested network's weights, those of Linear layers and convolutions, that a width uses."""
    part, whole = (lb.extract(model, width=at, sparse=False) for at in (width, 1.0))
    return weights_in_all(part) / weights_in_all(whole)
