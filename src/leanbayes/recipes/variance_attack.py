"""Targeted attacks on ensembles (variance networks, figure 2): success rate and entropy, iteration by iteration.

A plain network, dropout at its means and as an ensemble, a deep ensemble of five, a variance network and an ensemble of
five of those; nobody is trained against attacks. The attacker follows the gradient of what the ensemble says, averaged
over 10 draws that are new in every iteration. A single network is member 0 of its ensemble: training in turn is
training apart.

The paper attacks a VGG-like network on CIFAR-10 with a step of 0.5 and does not say of what; 0.5 / 255 is the
plausible reading (the paper preset). MNIST is black and white and takes larger steps: 4 / 255 on the cpu preset, 20 of
which may change a pixel by 0.31. The figure's curves are not tabulated, so there are no numbers of the paper's here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..methods import Dropout, Ensemble, Method, Variance
from .base import Jobs, Metrics, Row, recipe
from .variance import trained
from .workload import Run

if TYPE_CHECKING:
    from torch import nn

METRICS = ("success", "entropy", "clean_entropy", "accuracy")
FAMILIES = {
    "plain": ("plain network", "deep ensemble"),
    "dropout": ("dropout, at the means", "dropout"),
    "variance": ("variance network", "variance ensemble"),
}
ORDER = ("plain network", "dropout, at the means", "dropout", "deep ensemble", "variance network", "variance ensemble")


@dataclass(frozen=True)
class Setting:
    """What a preset trains and how it is attacked.

    run: the plain network, its epochs those of each member. dropout, variance: what which layers are given.
    options, lr_scale: of the variance network, and of its log alpha. step: in units of 1/255. limit: how many test
    images are attacked.
    """

    run: Run
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

SETTINGS = {
    "smoke": Setting(
        Run("digits", "mlp", MLP, epochs=3, lr=3e-3, batch_size=50),
        dropout={"4": Dropout(0.5), "7": Dropout(0.5)},
        variance={"4": Variance(log_alpha=5.0)},
        members=2,
        step=16.0,
        iterations=3,
        samples=4,
        limit=50,
    ),
    "cpu": Setting(
        Run("mnist", "lenet5", LENET, epochs=4),
        dropout={"dense1": Dropout(0.5), "dense2": Dropout(0.5)},
        variance={"dense1": Variance(log_alpha=12.0)},
        lr_scale=1e-3,
    ),
    "paper": Setting(
        Run("cifar10", "vgg_like", epochs=200, batch_size=100, augment=True),
        dropout=OWN_DROPOUT,
        variance={**VGG_VARIANCE, **OWN_DROPOUT},
        options={"dropout_last": False},
        lr_scale=1e-2,
        step=0.5,
        limit=10_000,
    ),
}


@recipe(
    "variance-attack",
    "targeted attacks on plain, dropout, deep and variance ensembles: success rate and entropy by iteration",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every method and iteration; iteration 0 is before the attack."""
    setting = SETTINGS[preset]
    runs: dict[str, list[Metrics]] = {}
    for seed in range(setting.seeds):
        for family, names in FAMILIES.items():
            key = {"measured": "attack", "family": family, **_key(setting, family), "seed": seed}
            label = f"{family} on {setting.run.data}, seed {seed}"
            found = jobs(key, partial(_family, setting, family, seed), label=label)
            for name in names:
                runs.setdefault(name, []).append(found)
    for name in ORDER:
        for iteration in range(setting.iterations + 1):
            each = [{m: run[f"{name} {iteration} {m}"] for m in METRICS} for run in runs[name]]
            yield Row(setting.run.data, name, iteration, each, paper={})


def training(setting: Setting, family: str) -> Run:
    """The run of a family: an ensemble takes as many times the epochs as it has members."""
    members, run = setting.members, setting.run
    if family == "dropout":
        return replace(run, methods=setting.dropout)
    methods: dict[str, Method] = {}
    if family == "variance":
        run = replace(run, options={**run.options, **setting.options}, lr_scale=setting.lr_scale)
        methods = {n: Ensemble(members, m) if isinstance(m, Variance) else m for n, m in setting.variance.items()}
    return replace(run, methods={**methods, "*": Ensemble(members)}, epochs=members * run.epochs)


def _key(setting: Setting, family: str) -> dict[str, Any]:
    attack = {name: getattr(setting, name) for name in ("step", "iterations", "samples", "limit")}
    return {"run": training(setting, family).key(0), **attack}


def _family(setting: Setting, family: str, seed: int) -> Metrics:
    """Train the networks of a family and attack them as one and as several."""
    from ..evaluation.pixels import Pixels
    from ..methods.ensemble.layer import member

    model, data, _ = trained(training(setting, family), seed)
    single, several = FAMILIES[family]
    pixels = Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
    inputs, labels = (part[: setting.limit] for part in data.test.tensors)
    at_means = family == "dropout"
    models: list[tuple[str, nn.Module, bool]] = [
        (single, model if at_means else member(model, 0), at_means),
        (several, model, False),
    ]
    found: Metrics = {}
    for name, network, mean_only in models:
        curve = _attacked(setting, network, (inputs, labels), pixels, seed, mean_only)
        for iteration in range(setting.iterations + 1):
            for metric in ("success", "entropy", "accuracy"):
                found[f"{name} {iteration} {metric}"] = curve[metric][iteration]
            found[f"{name} {iteration} clean_entropy"] = curve["entropy"][0]
    return found


def _attacked(setting: Setting, model: nn.Module, data: Any, pixels: Any, seed: int, mean_only: bool) -> dict[str, Any]:
    from ..evaluation.attack import Attack, attack

    config = Attack(
        step=setting.step,
        iterations=setting.iterations,
        samples=setting.samples,
        limit=setting.limit,
        mean_only=mean_only,
        seed=seed,
    )
    return attack(model, data, config, pixels=pixels, task="classification", progress=False).curve


def figure(result: Mapping[str, Any]) -> str:
    """Figure 2 as SVG: success rate above, entropy below, against the iteration."""
    from ..report.figure import canvas, colour, label, percent_axis, svg

    names = list(dict.fromkeys(row["method"] for row in result["rows"]))
    with canvas(2, width=5.4, height=5.2) as (drawn, (top, bottom)):
        for number, name in enumerate(names):
            mine = [row for row in result["rows"] if row["method"] == name]
            style = {"color": colour(number), "label": label(name), "markersize": 3.5}
            for ax, metric in ((top, "success"), (bottom, "entropy")):
                ax.plot(*_points(mine, metric), ("o-", "s--", "^-.", "D:", "v-", "x--")[number % 6], **style)
        top.set(ylim=(0, 1.02), ylabel="successful attacks")
        bottom.set(ylim=(0, None), ylabel="entropy (nats)", xlabel="iteration of the attack")
        percent_axis(top, "y")
        top.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, handlelength=1.8)
        top.tick_params(labelbottom=False)
        bottom.xaxis.get_major_locator().set_params(integer=True)
        drawn.align_ylabels()
        ends = (f"{row['method']}: {row['metrics']['success']['mean']:.0%}" for row in _last(result["rows"]))
        return svg(drawn, "Targeted attacks by iteration", "Successful in the end: " + "; ".join(ends))


def _points(found: Sequence[Mapping[str, Any]], metric: str) -> tuple[list[float], list[float]]:
    return [row["setting"] for row in found], [row["metrics"][metric]["mean"] for row in found]


def _last(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({row["method"]: row for row in found}.values())
