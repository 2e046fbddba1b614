"""What the experiments of sparse subspace VI share: the networks, and how they are trained.

As run by its authors: mean cross-entropy + kl_weight * KL / N with a kl_weight that rises linearly to 0.01 over the
first half of training, SGD with momentum 0.9 at 0.01 that falls along a cosine, batches of 128, weight decay 5e-4
except on rho; the same share of every layer, the stem dense (here: a dense Gaussian layer); an update every 100 steps
until three quarters of training, 0.3 of the weights at first. sigma starts at 6.6e-4, the mean of what they draw.
Prediction is by five whole draws of the weights.

Short presets see fewer images, hence a wider prior: KL / N of a prior this narrow would be a weight decay that grows as
the data shrink. What their paper calls ECE is `classwise_l2`; `ece` is Guo's, with 15 bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...data import DataSet
from ...methods import MeanField, Method, Rigl, SparseSubspace, StructuredPruning, VariationalDropout
from ...posteriors import Gaussian
from ...priors import Normal
from ...training.schedules import warmup
from ..experiment import Cell
from ..training import Training, network_cell, split_parameters
from .measures import quality

SCALES = (".rho", ".scale.loc", ".scale.log_std")  # parameters that set the noise


@dataclass(frozen=True)
class SparseTraining(Training):
    """One training run; see `Training` for the other fields.

    methods: what which layers are given; None leaves one alone. warmup: the share of training over which kl_weight
    rises. adam: instead of SGD, for variational dropout and structured pruning, whose scales have a long way to go;
    lr_scale is their learning rate. init_std: of dense means at the start; None keeps the network's own.
    """

    lr: float = 0.01
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    kl_weight: float = 0.01
    warmup: float = 0.5
    adam: bool = False
    init_std: float | None = None

    def convert_(self, model: nn.Module) -> None:
        """Give a new network the methods; means of dense Gaussian layers are drawn from N(0, init_std^2)."""
        super().convert_(model)
        if self.init_std is not None:
            for module in model.modules():
                if isinstance(module, Gaussian):
                    module.loc.data.normal_(0, self.init_std)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum, or Adam; the parameters that set the noise have no weight decay."""
        others, scales = split_parameters(model, SCALES)
        groups: list[dict[str, Any]] = [
            {"params": others, "lr": self.lr, "weight_decay": self.weight_decay},
            {"params": scales, "lr": self.lr_scale or self.lr, "weight_decay": 0.0},
        ]
        if self.adam:
            groups[1]["betas"] = (0.9, self.beta_scale)
        groups = [group for group in groups if group["params"]]
        return torch.optim.Adam(groups) if self.adam else torch.optim.SGD(groups, self.lr, self.momentum)

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """A learning rate that falls along a cosine, and the weight of the KL."""
        return {
            "scheduler": lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, self.epochs),
            "kl_weight": self.kl_schedule(len(data.train)),
        }

    def kl_schedule(self, count: int) -> Any:
        """The weight of the KL: a number, or its rise from 0 over the first share of the steps."""
        steps = round(self.warmup * self.epochs * math.ceil(count / self.batch_size))
        return warmup(0, self.kl_weight, steps=steps) if steps else self.kl_weight


@dataclass(frozen=True)
class SparseSetup:
    """A network on its data, and how the methods are set for it.

    training: without a method. stem: the layer that stays dense, if there is one. prior, std: standard deviations of
    the prior and of q at the start. interval: steps between updates. seeds, samples: how many runs, and draws at test.
    network: named in the table where data have several. without: rows left out for the time they take.
    """

    training: SparseTraining
    stem: str | None = None
    prior: float = 0.005
    std: float = 6.6e-4
    interval: int = 100
    seeds: int = 3
    samples: int = 5
    network: str = ""
    without: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What a table calls it."""
        return f"{self.training.data}, {self.network}" if self.network else self.training.data

    def cell(
        self, training: SparseTraining, what: str, method: str, setting: Any, measure: Any = quality, **options: Any
    ) -> Cell:
        """The network of a training, measured by ``measure(model, data, samples, seed)``.

        what: the name of the measurement. options: those of `network_cell`.
        """
        options = {"seeds": self.seeds, "measured": what, "samples": self.samples, **options}
        return network_cell(self.label, training, method, setting, partial(measure, samples=self.samples), **options)

    def subspace(self, density: float, **changes: Any) -> SparseTraining:
        """Sparse subspace VI; changes are fields of the method."""
        options = {
            "density": density,
            "interval": self.interval,
            "prior": Normal(std=self.prior),
            "std": self.std,
            "keep_weights": False,
            "init_std": self.training.init_std,
            **changes,
        }
        return self._with(SparseSubspace(**options), stem=self._gaussian(options["std"]))

    def dense(self, std: float | None = None) -> SparseTraining:
        """Dense VI with local reparameterisation."""
        return replace(self.training, methods={"*": self._gaussian(self.std if std is None else std)})

    def rigl(self, density: float) -> SparseTraining:
        """RigL, the stem dense."""
        fresh = {"keep_weights": False, "init_std": self.training.init_std}
        method = Rigl(density=density, interval=self.interval, **fresh)  # type: ignore[arg-type]
        return self._with(method, stem=None)

    def compared(self, density: float) -> tuple[tuple[str, float, SparseTraining], ...]:
        """The methods of a comparison: name, density and training."""
        return (
            ("dense VI", 1.0, self.dense()),
            ("RigL", density, self.rigl(density)),
            ("sparse subspace", density, self.subspace(density)),
        )

    def variational_dropout(self) -> SparseTraining:
        """Under its own objective: the KL in full in the end."""
        method = VariationalDropout(log_alpha=-5.0)
        training = self._own_objective(self._with(method, stem=method), fast=1e-2)
        return replace(training, lr=3e-3) if self._short else training

    def structured(self) -> SparseTraining:
        """SBP, likewise; the inputs of the stem are the data.

        Its scales have the longest way to go: a short run starts them at a noise of e^-2 instead of e^-5.
        """
        short = self._short
        training = self._own_objective(
            self._with(StructuredPruning(log_std=-2.0 if short else -5.0), stem=None), fast=0.1
        )
        return replace(training, warmup=0.1) if short else training

    def _with(self, method: Method, stem: Method | None) -> SparseTraining:
        rules = {} if self.stem is None else {self.stem: stem}
        return replace(self.training, methods={**rules, "*": method})

    def _gaussian(self, std: float) -> Method:
        return MeanField(prior=Normal(std=self.prior), std=std, random_bias=False)

    @property
    def _short(self) -> bool:
        return self.training.epochs < 100

    def _own_objective(self, training: SparseTraining, fast: float) -> SparseTraining:
        """fast: the learning rate of the scales in a short run."""
        rates = {"lr_scale": fast, "beta_scale": 0.99} if self._short else {"lr_scale": 1e-3, "beta_scale": 0.999}
        plain = replace(training, kl_weight=1.0, init_std=None, weight_decay=0.0, adam=True, lr=1e-3)
        return replace(plain, **rates)  # type: ignore[arg-type]


def digits(**changes: Any) -> SparseSetup:
    """A perceptron on the embedded digits, for the smoke presets."""
    training = SparseTraining(
        "digits", "mlp", {"hidden": (64, 64), "batch_norm": True}, epochs=2, lr=0.1, batch_size=50, limit=800
    )
    short = SparseSetup(training, stem="1", prior=0.1, std=0.01, interval=5, seeds=1, samples=2)
    return replace(short, **changes)


def mlp(**changes: Any) -> SparseSetup:
    """A perceptron with BatchNorm, all of it sparse, on a third of Fashion-MNIST: for what takes many runs."""
    options = {"hidden": (300, 100), "batch_norm": True, "bias": False}
    training = SparseTraining("fashion-mnist", "mlp", options, epochs=6, lr=0.05, limit=20_000)
    return replace(SparseSetup(training, prior=0.05, std=0.005, interval=25, network="mlp"), **changes)


def lenet(**changes: Any) -> SparseSetup:
    """LeNet-5 with BatchNorm on a third of Fashion-MNIST."""
    options = {"batch_norm": True, "bias": False}
    training = SparseTraining("fashion-mnist", "lenet5", options, epochs=6, lr=0.05, limit=20_000)
    return replace(SparseSetup(training, stem="conv1", prior=0.05, std=0.005, interval=25), **changes)


def resnet(**changes: Any) -> SparseSetup:
    """ResNet-18 at half of its width, with ImageNet's stem, on 20,000 images of CIFAR-10.

    That stem makes images an eighth as large on their way: what a step costs would behind
    the stem for CIFAR pay for a network far too narrow for 90 % sparsity.
    """
    training = SparseTraining(
        "cifar10", "resnet18", {"width": 32}, epochs=8, lr=0.05, limit=20_000, test_limit=5000, augment=True
    )
    short = SparseSetup(training, stem="conv1", prior=0.05, std=0.005, interval=25, without=("variational dropout",))
    return replace(short, **changes)


def published(data: str = "cifar10", **changes: Any) -> SparseSetup:
    """ResNet-18 for 200 epochs."""
    training = SparseTraining(data, "resnet18_cifar", epochs=200, augment=True, init_std=0.01)
    return replace(SparseSetup(training, stem="conv1"), **changes)
