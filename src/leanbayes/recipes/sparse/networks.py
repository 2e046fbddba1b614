"""What the experiments of sparse subspace VI share: the networks, and how they are trained.

As run by its authors: mean cross-entropy + kl_weight * KL / N with a kl_weight that rises linearly to 0.01 over the
first half of training, SGD with momentum 0.9 at 0.01 that falls along a cosine, batches of 128, weight decay 5e-4
except on rho; the same share of every layer, the stem dense (here: a dense Gaussian layer); an update every 100 steps
until three quarters of training, 0.3 of the weights at first. sigma starts at 6.6e-4, the mean of what they draw.
Prediction is by five whole draws of the weights. One thing is not theirs: scales have steps of their own (`lb.SGD`),
since under plain SGD sigma stays where it starts.

Short presets have prior, kl_weight and the start of sigma chosen on training images that no run sees, as the settings
with the highest AUROC against MNIST whose accuracy is within a point of RigL's (the perceptron at 5 %); ten draws. The
KL of more weights weighs more: where densities or networks are compared by accuracy and loss, every Gaussian network
takes the kl_weight with the least loss on such images, dense VI too ("kl_weight", the mean over seeds).
What their paper calls ECE is `classwise_l2`; `ece` is Guo's, with 15 bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import leanbayes as lb

from ...data import DataSet
from ...methods import MeanField, Method, Rigl, SparseSubspace, StructuredPruning, VariationalDropout
from ...posteriors import Gaussian
from ...priors import Normal
from ...training.schedules import warmup
from ..experiment import Cell
from ..jobs import Jobs
from ..results import Measured
from ..training import Training, network_cell, trained_network
from .measures import predicted, quality, scores

HELD_OUT = 2000  # training images that no network is trained on, which choose the weight of the KL
KL_WEIGHTS = (0.003, 0.01, 0.03, 0.1)  # to choose from


@dataclass(frozen=True)
class SparseTraining(Training):
    """One training run; see `Training` for the other fields.

    methods: what which layers are given; None leaves one alone. warmup: the share of training over which kl_weight
    rises. lr_scale: the most by which a step changes log sigma. adam: instead of SGD, for variational dropout and
    structured pruning. init_std: of dense means at the start; None keeps the network's own.
    """

    lr: float = 0.01
    lr_scale: float | None = 0.02
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

    @property
    def gaussian(self) -> bool:
        """Whether the weights have Gaussian posteriors, under the objective that kl_weight is for."""
        return any(type(method) in (MeanField, SparseSubspace) for method in self.methods.values())

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD with momentum whose scales take Adam's steps, or Adam."""
        groups = lb.parameter_groups(model, lr=self.lr, scale_lr=self.lr_scale, weight_decay=self.weight_decay)
        if not self.adam:
            return lb.SGD(groups, momentum=self.momentum)
        for group in groups[1:]:
            group["betas"] = (0.9, self.beta_scale)
        return torch.optim.Adam(groups)

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
    network: named in the table where data have several. without: rows left out for the time they take. kl_weights: of
    which each Gaussian network takes its own; none to take the training's.
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
    kl_weights: tuple[float, ...] = ()

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
        work = partial(measure, samples=self.samples)
        if not self.kl_weights or not training.gaussian:
            return network_cell(self.label, training, method, setting, work, **options)
        seeds, paper = options.pop("seeds"), options.pop("paper", None) or {}
        key = {**training.key(), **options, "kl_weights": list(self.kl_weights), "held_out": HELD_OUT}
        return Cell(self.label, method, setting, key, partial(self.measured, training, work), seeds, paper)

    def measured(self, training: SparseTraining, measure: Any, jobs: Jobs, seed: int) -> Measured:
        """What the network with the best weight of the KL is worth, with that weight."""
        data, (inputs, targets) = training.load(), training.held_out_images(HELD_OUT)
        loss = dict[float, float]()
        for weight in self.kl_weights:
            model = trained_network(jobs, replace(training, kl_weight=weight), seed, data)
            loss[weight] = scores(predicted(model, inputs, self.samples, seed).probs, targets)["nll"]
        best = min(loss, key=loss.__getitem__)
        found = measure(trained_network(jobs, replace(training, kl_weight=best), seed, data), data, seed=seed)
        return {"rows": [{**row, "kl_weight": best} for row in found.get("rows", [found])]}

    def subspace(self, density: float, **changes: Any) -> SparseTraining:
        """Sparse subspace VI; changes are fields of the method."""
        options = {
            "density": density,
            "interval": self.interval,
            "prior": Normal(std=self.prior),
            "std": self.std,
            "keep_weights": False,
            "init_std": self.training.init_std,
            "fewest": 32,
            **changes,
        }
        return self._with(SparseSubspace(**options), stem=self._gaussian(options["std"]))

    def dense(self, std: float | None = None) -> SparseTraining:
        """Dense VI with local reparameterisation."""
        return replace(self.training, methods={"*": self._gaussian(self.std if std is None else std)})

    def rigl(self, density: float) -> SparseTraining:
        """RigL, the stem dense."""
        fresh = {"keep_weights": False, "init_std": self.training.init_std, "fewest": 32}
        method = Rigl(density=density, interval=self.interval, **fresh)  # type: ignore[arg-type]
        return self._with(method, stem=None)

    def compared(self, density: float) -> tuple[tuple[str, float, SparseTraining], ...]:
        """The methods of a comparison: name, density and training."""
        found = (
            ("dense VI", 1.0, self.dense()),
            ("RigL", density, self.rigl(density)),
            ("sparse subspace", density, self.subspace(density)),
        )
        return tuple(line for line in found if line[0] not in self.without)

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
    """A perceptron with BatchNorm, all of it sparse, on a sixth of Fashion-MNIST: for what takes many runs."""
    options = {"hidden": (300, 100), "batch_norm": True, "bias": False}
    return _short("mlp", options, network="mlp", **changes)


def lenet(**changes: Any) -> SparseSetup:
    """LeNet-5 with BatchNorm on a sixth of Fashion-MNIST."""
    return _short("lenet5", {"batch_norm": True, "bias": False}, stem="conv1", network="lenet5", **changes)


def resnet(**changes: Any) -> SparseSetup:
    """ResNet-18 at half of its width behind a 3x3 stem of stride 2, for CIFAR-10: timed, not trained.

    What such networks learn there is in the recipe cifar10.
    """
    training = SparseTraining("cifar10", "resnet18_cifar", {"width": 32, "stem_stride": 2}, epochs=8, limit=20_000)
    return replace(SparseSetup(training, stem="conv1", prior=0.3, std=0.01), **changes)


def _short(model: str, options: dict[str, Any], **changes: Any) -> SparseSetup:
    training = SparseTraining("fashion-mnist", model, options, epochs=8, lr=0.05, limit=10_000, kl_weight=0.1)
    return replace(SparseSetup(training, prior=0.3, std=0.01, interval=25, seeds=2, samples=10), **changes)


def published(data: str = "cifar10", **changes: Any) -> SparseSetup:
    """ResNet-18 for 200 epochs."""
    training = SparseTraining(data, "resnet18_cifar", epochs=200, augment=True, init_std=0.01)
    return replace(SparseSetup(training, stem="conv1"), **changes)
