"""What the recipes of nested posteriors share: the networks, how they are trained, and what is measured at a width.

One network of every kind is trained and asked at many widths; the recipes share it (`Jobs.network`). As the authors
have it, the first convolution is deterministic, the others are ordered, and the dense layers are random without an
order. Before a width is asked, BatchNorm's statistics are re-estimated there: under noise, or at the means where the
means are asked.

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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..methods import Nested, NestedDropout, VariationalDropout
from ..methods.nested import WEIGHTS
from . import workload
from .base import Jobs, Metrics
from .workload import Run

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data import DataSet

KINDS = ("BN3", "FN3", "IBNN", "SVB")


@dataclass(frozen=True)
class Setting:
    """A network on its data, and how it is nested.

    run: the plain network. stem: the layer that stays deterministic; ordered, dense: names of the others.
    groups, base_groups: of the ordered layers. widths: those asked. alone: those at which networks are trained on
    their own. other: data of another domain. held_out: images for temperatures. kl_weight, tail_weight: of the two
    terms of the KL. log_alpha: where the noise of random weights starts. clean: images that re-estimate BatchNorm's
    statistics; None for all. keep: of nested channels after training. natural: the authors' optimisers and schedules.
    """

    run: Run
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

    def methods(self, kind: str) -> dict[str, Any]:
        """What which layers are given: a nested posterior, fixed tails, random weights, or weights that may vanish."""
        size = {"groups": self.groups, "base_groups": self.base_groups}
        random = replace(WEIGHTS, log_alpha=self.log_alpha)
        if kind == "BN3":
            nested = Nested(**size, tail_weight=self.tail_weight, weights=random)  # type: ignore[arg-type]
            return {self.stem: None, self.ordered: nested, self.dense: random}
        if kind == "FN3":
            fixed = NestedDropout(**size, tails="uniform")  # type: ignore[arg-type]
            return {self.stem: None, self.ordered: fixed, "*": None}
        return {self.stem: None, "*": VariationalDropout() if kind == "SVB" else random}

    def key(self, kind: str, seed: int, width: float) -> dict[str, Any]:
        """All that a trained network depends on."""
        run = replace(self.run, methods=self.methods(kind))
        also = {"width": width, "kl_weight": self.kl_weight, "keep": self.keep, "natural": self.natural}
        return {**run.key(seed), "trained": kind, **also}


SMALL = Run("cifar10", "vgg_small", epochs=30, batch_size=100, limit=10_000, test_limit=5000)


def digits(**changes: Any) -> Setting:
    """A small convolutional network on the embedded digits, for the smoke presets."""
    run = Run("digits", "vgg_small", {"width": 0.5, "hidden": 16}, epochs=2, lr=3e-3, batch_size=50, limit=600)
    short = Setting(
        run, "not-digits/letters", groups=4, widths=(0.25, 1.0), held_out=200, clean=200, seeds=1, samples=2
    )
    return replace(short, **changes)


def cifar(**changes: Any) -> Setting:
    """A small VGG on 10,000 images of CIFAR-10, beside SVHN."""
    return replace(Setting(SMALL, "svhn"), **changes)


def fashion(**changes: Any) -> Setting:
    """The same on Fashion-MNIST, beside MNIST."""
    return replace(Setting(replace(SMALL, data="fashion-mnist"), "mnist"), **changes)


def published(**changes: Any) -> Setting:
    """VGG11 for 600 epochs on CIFAR-10, in 48 groups of which 32 are kept and two are always on."""
    run = Run("cifar10", "vgg11_bn", {"width": 1.5}, epochs=600, lr=0.1, batch_size=512, augment=True, limit=45_000)
    widths = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
    large = Setting(run, "svhn", groups=48, base_groups=2, widths=widths, alone=widths, held_out=5000, clean=None)
    return replace(large, **{"keep": 2 / 3, "natural": True, "log_alpha": -1.0, **changes})


SETTINGS: dict[str, tuple[Setting, ...]] = {"smoke": (digits(),), "cpu": (fashion(), cifar()), "paper": (published(),)}


def network(jobs: Jobs, setting: Setting, kind: str, seed: int, width: float = 1.0) -> nn.Module:
    """A trained network: nested ("BN3", "FN3"), or one of its own at a width ("IBNN", "SVB")."""
    return jobs.network(
        setting.key(kind, seed, width),
        lambda: fresh(replace(setting, keep=1.0) if kind in ("BN3", "FN3") else setting, seed, width),
        partial(train, setting, kind, seed, width),
        label=f"{kind} on {setting.run.data}, width {width:g}, seed {seed}",
    )


def fresh(setting: Setting, seed: int, width: float = 1.0) -> nn.Module:
    """The plain network, newly initialised; below width 1 in the shape that a nested one is cut to."""
    import torch

    import leanbayes as lb

    torch.manual_seed(seed)
    model = workload.network(setting.run, workload.load(setting.run))
    if width == 1 and setting.keep == 1:
        return model
    lb.bayesianize_(model, setting.methods("FN3"))  # type: ignore[arg-type]
    if setting.keep < 1:
        lb.truncate_(model, setting.keep)
    small = lb.extract(model, width=width)
    for module in small.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    return small


def train(setting: Setting, kind: str, seed: int, width: float = 1.0, **options: Any) -> nn.Module:
    """Fit it to the training data; further options go to `fit`."""
    import leanbayes as lb

    run, data = setting.run, workload.load(setting.run)
    nested = kind in ("BN3", "FN3")
    model = fresh(replace(setting, keep=1.0) if nested else setting, seed, width)
    lb.bayesianize_(model, setting.methods(kind))  # type: ignore[arg-type]
    chosen, schedule, epochs = _optimiser(setting, kind, model)
    lb.fit(
        model,
        workload.training_data(run, data),
        epochs=epochs,
        optimizer=chosen,
        scheduler=schedule,
        batch_size=run.batch_size,
        kl_weight=setting.kl_weight,
        seed=seed,
        **{"progress": False, **options},
    )
    if nested and setting.keep < 1:
        lb.truncate_(model, setting.keep)
    return model


def _optimiser(setting: Setting, kind: str, model: nn.Module) -> tuple[Any, Any, int]:
    """An optimiser, its schedule, and for how many epochs."""
    import torch

    from ..training.natural_gradient import NaturalGradientSGD

    run = setting.run
    if not setting.natural:
        return workload.optimizer(model, run), partial(workload.linear_decay, epochs=run.epochs), run.epochs
    kinds = torch.optim.SGD if kind == "FN3" else NaturalGradientSGD
    nested = kind in ("BN3", "FN3")
    every, by, epochs = (run.epochs // 4, 0.1, run.epochs) if nested else (run.epochs // 15, 0.3, run.epochs * 2 // 5)
    steps = partial(torch.optim.lr_scheduler.StepLR, step_size=every, gamma=by)
    return kinds(model.parameters(), lr=run.lr, momentum=0.9), steps, epochs


def held_out(setting: Setting) -> tuple[Tensor, Tensor]:
    """Training images that no network of the setting was trained on."""
    from ..data import load

    inputs, targets = load(setting.run.data, val_fraction=0).train.tensors
    start = setting.run.limit or len(inputs) - setting.held_out
    return inputs[start : start + setting.held_out], targets[start : start + setting.held_out]


def at_width(
    setting: Setting, model: nn.Module, data: DataSet, width: float | None, *, means: bool = False, clean: Any = "all"
) -> nn.Module:
    """A copy that runs at a width, its BatchNorm statistics collected there; None keeps on sampling widths.

    clean: images to collect them from; by default as the setting says.
    """
    import leanbayes as lb

    found = copy.deepcopy(model)
    if width is not None:
        lb.set_width_(found, width)
    images = setting.clean if clean == "all" else clean
    return lb.recalibrate_(found, data.train, at="means" if means else "samples", data=images)


def quality(setting: Setting, model: nn.Module, data: DataSet, seed: int, **options: Any) -> Metrics:
    """Accuracy, loss and calibration on the test part, and how well entropy tells the other domain."""
    from ..data import load
    from ..evaluation.metrics import calibration, classification
    from ..evaluation.metrics.ood import aupr, auroc
    from ..prediction import predict

    options = {"chunk": workload.ROWS * setting.samples, **options}
    if not options.get("mean_only"):
        options |= {"samples": setting.samples, "seed": seed}
    inputs, targets = data.test.tensors
    other = load(setting.other, parts="test", normalise=data).test.tensors[0][: len(inputs)]
    inside, outside = (predict(model, x, **options) for x in (inputs, other))
    return {
        "accuracy": classification.accuracy(inside.probs, targets),
        "nll": classification.nll(inside.probs, targets),
        "ece": calibration.ece(inside.probs, targets, bins=15, min_count=0),
        "AUPR": aupr(inside.entropy, outside.entropy),
        "AUROC": auroc(inside.entropy, outside.entropy),
    }


def share_of_weights(model: nn.Module, width: float | Mapping[str, float]) -> float:
    """The part of a nested network's weights, those of Linear layers and convolutions, that a width uses."""
    import leanbayes as lb

    part, whole = (lb.extract(model, width=at, sparse=False) for at in (width, 1.0))
    return weights(part) / weights(whole)


def weights(model: nn.Module) -> int:
    """Those of Linear layers and convolutions, without biases."""
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


def piece_key(setting: Setting, kind: str, seed: int, width: float = 1.0, **also: Any) -> dict[str, Any]:
    """All that a measurement of a trained network depends on, for `Jobs`."""
    shared = {"samples": setting.samples, "other": setting.other, "clean": setting.clean, "base": setting.base_groups}
    return {**setting.key(kind, seed, width), **shared, **also}
