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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..methods import MeanField, Method, Rigl, SparseSubspace, StructuredPruning, VariationalDropout
from ..priors import Normal
from . import variance
from .base import Jobs, Metrics

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..data import DataSet
    from ..train.history import History

SCALES = (".rho", ".scale.loc", ".scale.log_std")  # parameters that set the noise


@dataclass(frozen=True)
class Run(variance.Run):
    """One training run; see `recipes.variance.Run` for the other fields.

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

    run: without a method. stem: the layer that stays dense. prior, std: standard deviations of the prior and of q at
    the start. interval: steps between updates. seeds, samples: how many runs, and draws at test.
    """

    run: Run
    stem: str
    prior: float = 0.005
    std: float = 6.6e-4
    interval: int = 100
    seeds: int = 3
    samples: int = 5

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
        stem = self._gaussian(options["std"])
        return replace(self.run, methods={self.stem: stem, "*": SparseSubspace(**options)})

    def dense(self, std: float | None = None) -> Run:
        """Dense VI with local reparameterisation."""
        return replace(self.run, methods={"*": self._gaussian(self.std if std is None else std)})

    def rigl(self, density: float) -> Run:
        """RigL, the stem dense."""
        fresh = {"keep_weights": False, "init_std": self.run.init_std}
        method = Rigl(density=density, interval=self.interval, **fresh)  # type: ignore[arg-type]
        return replace(self.run, methods={self.stem: None, "*": method})

    def variational_dropout(self) -> Run:
        """Under its own objective: the KL in full in the end."""
        return self._own_objective({"*": VariationalDropout()})

    def structured(self) -> Run:
        """SBP, likewise; the inputs of the stem are the data."""
        return self._own_objective({self.stem: None, "*": StructuredPruning()})

    def _gaussian(self, std: float) -> Method:
        return MeanField(prior=Normal(std=self.prior), std=std, random_bias=False)

    def _own_objective(self, methods: Mapping[str, Any]) -> Run:
        fast = self.run.epochs < 100
        rates = {"adam": True, "lr": 1e-3, "lr_scale": 1e-2 if fast else 1e-3, "beta_scale": 0.99 if fast else 0.999}
        plain = replace(self.run, methods=methods, kl_weight=1.0, init_std=None, weight_decay=0.0)
        return replace(plain, **rates)  # type: ignore[arg-type]


def digits(**changes: Any) -> Setting:
    """A perceptron on the embedded digits, for the smoke presets."""
    run = Run("digits", "mlp", {"hidden": (64, 64), "batch_norm": True}, epochs=2, lr=0.1, batch_size=50, limit=800)
    short = Setting(run, stem="1", prior=0.1, std=0.01, interval=5, seeds=1, samples=2)
    return replace(short, **changes)


def lenet(**changes: Any) -> Setting:
    """LeNet-5 with BatchNorm on a third of Fashion-MNIST."""
    options = {"batch_norm": True, "bias": False}
    run = Run("fashion-mnist", "lenet5", options, epochs=6, lr=0.05, batch_size=64, limit=20_000, test_limit=5000)
    return replace(Setting(run, stem="conv1", prior=0.05, std=0.005, interval=25), **changes)


def resnet(**changes: Any) -> Setting:
    """ResNet-18 at a quarter of its width on 10,000 images of CIFAR-10."""
    options = {"width": 16}
    run = Run("cifar10", "resnet18_cifar", options, epochs=4, lr=0.05, batch_size=64, limit=10_000, test_limit=2000)
    return replace(Setting(replace(run, augment=True), stem="conv1", prior=0.05, std=0.005, interval=20), **changes)


def published(data: str = "cifar10", **changes: Any) -> Setting:
    """ResNet-18 for 200 epochs."""
    run = Run(data, "resnet18_cifar", epochs=200, augment=True, init_std=0.01)
    return replace(Setting(run, stem="conv1"), **changes)


def trained(run: Run, seed: int, **options: Any) -> tuple[nn.Module, DataSet, History]:
    """A network trained as a run says; further options go to `fit`."""
    import torch

    import leanbayes as lb

    data = variance.load(run)
    torch.manual_seed(seed)
    model = variance.network(run, data)
    convert_(model, run)
    history = lb.fit(
        model,
        variance.training_data(run, data),
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
    from ..train.schedules import warmup

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


def done(
    jobs: Jobs, run: Run, seed: int, what: str, measure: Callable[..., Mapping[str, float]], **also: Any
) -> Metrics:
    """The metrics of one run: trained and measured now, or read back; `also` is what else they depend on."""

    def work() -> Metrics:
        model, data, _ = trained(run, seed)
        return dict(measure(model, data))

    return jobs({**run.key(seed), "measured": what, **also}, work, label=f"{what} on {run.data}, seed {seed}")


def quality(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Accuracy, loss and both calibration errors on the test part."""
    from ..predict import predict

    inputs, targets = data.test.tensors
    options: dict[str, Any] = {"samples": samples, "seed": seed, "chunk": variance.ROWS * samples}
    return scores(predict(model, inputs, task="classification", **options).probs, targets)


def scores(probs: Any, targets: Any) -> Metrics:
    """Of predictions that have been made."""
    from ..evaluate.metrics import calibration, classification, classwise

    return {
        "accuracy": classification.accuracy(probs, targets),
        "nll": classification.nll(probs, targets),
        "ece": calibration.ece(probs, targets, bins=15, min_count=0),
        "classwise_l2": classwise.classwise_l2(probs, targets),
    }


def size(model: nn.Module, data: DataSet, run: Run) -> Metrics:
    """Numbers in use, the share of weights, and nominal operations of the whole training against those of dense VI."""
    from ..cost import cost

    example = data.test.tensors[0][:1]
    own, plain = cost(model, example), cost(variance.network(run, data), example)
    count = len(data.train)
    return {
        "parameters": own.active_parameters,
        "density": weights_in_use(model) / weights_in_all(variance.network(run, data)),
        "training FLOPs": own.training_flops(count, run.epochs),
        "x dense VI": own.training_flops() / (2 * plain.training_flops()),
    }


def weights_in_all(model: nn.Module) -> int:
    """The weights of the plain network: those of Linear layers and convolutions, without biases."""
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


def weights_in_use(model: nn.Module) -> int:
    """How many of the weights are left, each counted once whatever numbers describe it."""
    from ..layers.channel_noise import ChannelNoiseLayer
    from ..posteriors.base import Posterior
    from ..posteriors.sparse import Sparse

    total = 0
    for name, module in model.named_modules():
        if isinstance(module, ChannelNoiseLayer):
            total += module.active_weights()
        elif isinstance(module, Sparse):
            total += module.active_parameters() // len(list(module.parameters()))
        elif isinstance(module, Posterior) and name.endswith(".weight"):
            total += module.shape.numel() if module.keep is None else int(module.keep.sum())
        else:
            total += sum(p.numel() for p in module._parameters.values() if p is not None and p.ndim > 1)
    return total


def pruned_(model: nn.Module) -> nn.Module:
    """Variational dropout and structured pruning without what they have found needless; others as they are."""
    import warnings

    from ..compress.prune import prune_
    from ..convert.record import conversions
    from ..errors import LeanBayesWarning
    from ..methods.structured_pruning import prune_channels_

    methods = list(conversions(model).values())
    if any(isinstance(method, VariationalDropout) for method in methods):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeanBayesWarning)  # that a layer has nothing left shows in its accuracy
            prune_(model, by="log_alpha")
    if any(isinstance(method, StructuredPruning) for method in methods):
        prune_channels_(model)
    return model


def lines(
    result: Mapping[str, Any],
    title: str,
    xlabel: str,
    x: Callable[[Any], float],
    metrics: Sequence[str] = ("accuracy",),
    methods: Iterable[str] | None = None,
    *,
    log: bool = False,
) -> str:
    """A result as SVG: one line for every data set and method, one panel a metric, above one another."""
    from ..report.figure import canvas, colour, label, legend, percent_axis, svg

    rows = [row for row in result["rows"] if row["metrics"] and (methods is None or row["method"] in methods)]
    names = list(dict.fromkeys((row["dataset"], row["method"]) for row in rows))
    several = len({data for data, _ in names}) > 1
    ends = []
    with canvas(len(metrics), width=5.4, height=1.4 + 2.2 * len(metrics)) as (drawn, axes):
        panels = [axes] if len(metrics) == 1 else list(axes)
        for number, (data, method) in enumerate(names):
            mine = [row for row in rows if (row["dataset"], row["method"]) == (data, method)]
            mine.sort(key=lambda row: x(row["setting"]))
            text = f"{method}, {data}" if several else method
            style = ("o-", "s--", "^-.", "D:", "v-", "x--")[number % 6]
            for ax, metric in zip(panels, metrics, strict=True):
                found = [(x(row["setting"]), row["metrics"][metric]) for row in mine if metric in row["metrics"]]
                found = [(at, value) for at, value in found if value["mean"] is not None]
                ax.errorbar(
                    [at for at, _ in found],
                    [value["mean"] for _, value in found],
                    yerr=[value["std"] or 0.0 for _, value in found],
                    fmt=style,
                    color=colour(number),
                    label=label(text),
                    markersize=3.5,
                )
                if metric == metrics[0]:
                    ends += [f"{text}: {value['mean']:.3g} at {at:g}" for at, value in found[-1:]]
        for ax, metric in zip(panels, metrics, strict=True):
            ax.set_ylabel(metric)
            if metric == "accuracy":
                percent_axis(ax, "y")
            if log:
                ax.set_xscale("log")
        panels[-1].set_xlabel(xlabel)
        legend(panels[0])
        return svg(drawn, title, "; ".join(ends))
