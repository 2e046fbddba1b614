"""What the recipes of sparse subspace VI share: how networks are trained, and what is measured of them.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..methods import MeanField, Method, Rigl, SparseSubspace, StructuredPruning, VariationalDropout
from ..priors import Normal
from . import workload
from .base import Jobs, Metrics
from .sparse_measures import quality

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..data import DataSet
    from ..training.history import History

SCALES = (".rho", ".scale.loc", ".scale.log_std")  # parameters that set the noise


@dataclass(frozen=True)
class Run(workload.Run):
    """One training run; see `recipes.workload.Run` for the other fields.

    methods: what which layers are given; None leaves one alone. warmup: the share of training over which kl_weight
    rises. adam: instead of SGD, for variational dropout and structured pruning, whose scales have a long way to go;
    lr_scale is their learning rate. init_std: of dense means at the start; None keeps the network's own.
    """

    methods: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 0.01
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    kl_weight: float = 0.01
    warmup: float = 0.5
    adam: bool = False
    init_std: float | None = None


@dataclass(frozen=True)
class Setting:
    """A network on its data, and how the methods are set for it.

    run: without a method. stem: the layer that stays dense, if there is one. prior, std: standard deviations of the
    prior and of q at the start. interval: steps between updates. seeds, samples: how many runs, and draws at test.
    network: named in the table where data have several. without: rows left out for the time they take.
    """

    run: Run
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
        return f"{self.run.data}, {self.network}" if self.network else self.run.data

    def subspace(self, density: float, **changes: Any) -> Run:
        """Sparse subspace VI; changes are fields of the method."""
        options = {
            "density": density,
            "interval": self.interval,
            "prior": Normal(std=self.prior),
            "std": self.std,
            "keep_weights": False,
            "init_std": self.run.init_std,
            **changes,
        }
        return self._with(SparseSubspace(**options), stem=self._gaussian(options["std"]))

    def dense(self, std: float | None = None) -> Run:
        """Dense VI with local reparameterisation."""
        return replace(self.run, methods={"*": self._gaussian(self.std if std is None else std)})

    def rigl(self, density: float) -> Run:
        """RigL, the stem dense."""
        fresh = {"keep_weights": False, "init_std": self.run.init_std}
        method = Rigl(density=density, interval=self.interval, **fresh)  # type: ignore[arg-type]
        return self._with(method, stem=None)

    def variational_dropout(self) -> Run:
        """Under its own objective: the KL in full in the end."""
        method = VariationalDropout()
        run = self._own_objective(self._with(method, stem=method), fast=1e-2)
        return replace(run, lr=3e-3) if self._short else run

    def structured(self) -> Run:
        """SBP, likewise; the inputs of the stem are the data.

        Its scales have the longest way to go: a short run starts them at a noise of e^-2 instead of e^-5.
        """
        short = self._short
        run = self._own_objective(self._with(StructuredPruning(log_std=-2.0 if short else -5.0), stem=None), fast=0.1)
        return replace(run, warmup=0.1) if short else run

    def _with(self, method: Method, stem: Method | None) -> Run:
        rules = {} if self.stem is None else {self.stem: stem}
        return replace(self.run, methods={**rules, "*": method})

    def _gaussian(self, std: float) -> Method:
        return MeanField(prior=Normal(std=self.prior), std=std, random_bias=False)

    @property
    def _short(self) -> bool:
        return self.run.epochs < 100

    def _own_objective(self, run: Run, fast: float) -> Run:
        """fast: the learning rate of the scales in a short run."""
        rates = {"lr_scale": fast, "beta_scale": 0.99} if self._short else {"lr_scale": 1e-3, "beta_scale": 0.999}
        plain = replace(run, kl_weight=1.0, init_std=None, weight_decay=0.0, adam=True, lr=1e-3)
        return replace(plain, **rates)  # type: ignore[arg-type]


def digits(**changes: Any) -> Setting:
    """A perceptron on the embedded digits, for the smoke presets."""
    run = Run("digits", "mlp", {"hidden": (64, 64), "batch_norm": True}, epochs=2, lr=0.1, batch_size=50, limit=800)
    short = Setting(run, stem="1", prior=0.1, std=0.01, interval=5, seeds=1, samples=2)
    return replace(short, **changes)


def mlp(**changes: Any) -> Setting:
    """A perceptron with BatchNorm, all of it sparse, on a third of Fashion-MNIST: for what takes many runs."""
    options = {"hidden": (300, 100), "batch_norm": True, "bias": False}
    run = Run("fashion-mnist", "mlp", options, epochs=6, lr=0.05, limit=20_000)
    return replace(Setting(run, prior=0.05, std=0.005, interval=25, network="mlp"), **changes)


def lenet(**changes: Any) -> Setting:
    """LeNet-5 with BatchNorm on a third of Fashion-MNIST."""
    options = {"batch_norm": True, "bias": False}
    run = Run("fashion-mnist", "lenet5", options, epochs=6, lr=0.05, limit=20_000)
    return replace(Setting(run, stem="conv1", prior=0.05, std=0.005, interval=25), **changes)


def resnet(**changes: Any) -> Setting:
    """ResNet-18 at half of its width, with ImageNet's stem, on 20,000 images of CIFAR-10.

    That stem makes images an eighth as large on their way: what a step costs would behind
    the stem for CIFAR pay for a network far too narrow to be asked for 90 % sparsity.
    """
    run = Run("cifar10", "resnet18", {"width": 32}, epochs=8, lr=0.05, limit=20_000, test_limit=5000, augment=True)
    short = Setting(run, stem="conv1", prior=0.05, std=0.005, interval=25, without=("variational dropout",))
    return replace(short, **changes)


def published(data: str = "cifar10", **changes: Any) -> Setting:
    """ResNet-18 for 200 epochs."""
    run = Run(data, "resnet18_cifar", epochs=200, augment=True, init_std=0.01)
    return replace(Setting(run, stem="conv1"), **changes)


def trained(run: Run, seed: int, **options: Any) -> tuple[nn.Module, DataSet, History]:
    """A network trained as a run says; further options go to `fit`."""
    import torch

    import leanbayes as lb

    data = workload.load(run)
    torch.manual_seed(seed)
    model = workload.network(run, data)
    convert_(model, run)
    history = lb.fit(
        model,
        workload.training_data(run, data),
        epochs=run.epochs,
        optimizer=optimizer(model, run),
        scheduler=lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, run.epochs),
        kl_weight=kl_weight(run, len(data.train)),
        batch_size=run.batch_size,
        seed=seed,
        **{"progress": False, **options},
    )
    return model, data, history


def convert_(model: nn.Module, run: Run) -> None:
    """Give a new network the methods of a run.

    The means of dense Gaussian layers are drawn anew from N(0, init_std^2), as those of sparse ones are.
    """
    import leanbayes as lb

    from ..posteriors import Gaussian

    if run.methods:
        rules: Any = dict(run.methods)
        lb.bayesianize_(model, rules)
    if run.init_std is not None:
        for module in model.modules():
            if isinstance(module, Gaussian):
                module.loc.data.normal_(0, run.init_std)


def kl_weight(run: Run, count: int) -> Any:
    """A number, or its rise from 0 over the first share of the steps that `count` data make."""
    from ..training.schedules import warmup

    steps = round(run.warmup * run.epochs * math.ceil(count / run.batch_size))
    return warmup(0, run.kl_weight, steps=steps) if steps else run.kl_weight


def optimizer(model: nn.Module, run: Run) -> Optimizer:
    """SGD with momentum, or Adam; the parameters that set the noise have no weight decay."""
    import torch

    scales = [p for name, p in model.named_parameters() if name.endswith(SCALES)]
    known = {id(p) for p in scales}
    others = [p for p in model.parameters() if id(p) not in known]
    groups: list[dict[str, Any]] = [
        {"params": others, "lr": run.lr, "weight_decay": run.weight_decay},
        {"params": scales, "lr": run.lr_scale or run.lr, "weight_decay": 0.0},
    ]
    if run.adam:
        groups[1]["betas"] = (0.9, run.beta_scale)
    groups = [group for group in groups if group["params"]]
    return torch.optim.Adam(groups) if run.adam else torch.optim.SGD(groups, run.lr, run.momentum)


def network(jobs: Jobs, run: Run, seed: int, **options: Any) -> tuple[nn.Module, DataSet]:
    """The network of a run and its data; shared with all recipes, unless there are options for `fit`: callbacks."""
    data = workload.load(run)

    def train(**kept: Any) -> nn.Module:
        return trained(run, seed, **options, **kept)[0]

    label = f"training {run.model} on {run.data}, seed {seed}"
    return jobs.network(run.key(seed), partial(workload.network, run, data), train, label, anew=bool(options)), data


def done(
    jobs: Jobs, run: Run, seed: int, what: str, measure: Callable[..., Mapping[str, float]], **also: Any
) -> Metrics:
    """The metrics of one run: trained and measured now, or read back; `also` is what else they depend on."""

    def work() -> Metrics:
        return dict(measure(*network(jobs, run, seed)))

    return jobs({**run.key(seed), "measured": what, **also}, work, label=f"{what} on {run.data}, seed {seed}")


def seeds(
    jobs: Jobs, setting: Setting, run: Run, what: str, count: int | None = None, measure: Any = None
) -> list[Metrics]:
    """`done` for every seed of a setting, or the first ``count``; measured is `quality` unless told otherwise."""
    found = []
    for seed in range(setting.seeds if count is None else count):
        each = partial(quality if measure is None else measure, samples=setting.samples, seed=seed)
        found.append(done(jobs, run, seed, what, each, samples=setting.samples))
    return found
