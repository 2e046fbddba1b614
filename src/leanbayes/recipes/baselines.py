"""The foundation's methods side by side: a plain network, MC dropout, mean-field and variational dropout.

No paper's table, but the yardstick for those that follow. The cpu preset is `leanbayes demo` with five seeds; "paper"
stands here for a longer run, LeNet-5 on MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..methods import Dropout, MeanField, Method, VariationalDropout
from .base import Jobs, Metrics, Row, recipe

if TYPE_CHECKING:
    from ..evaluate import Evaluation


@dataclass(frozen=True)
class Contestant:
    """A method, the weight of its KL, and the share of training over which that weight rises."""

    method: Method | None
    kl_weight: float = 1.0
    warmup: float = 0.0


# later methods join here, and so the demo's table
CONTESTANTS: dict[str, Contestant] = {
    "plain network": Contestant(None),
    "MC dropout": Contestant(Dropout(0.2)),
    "mean-field": Contestant(MeanField()),
    "mean-field, tempered": Contestant(MeanField(), kl_weight=0.1),
    "variational dropout": Contestant(VariationalDropout(), warmup=0.5),
}


@dataclass(frozen=True)
class Setting:
    """What is trained on what, and for how long."""

    data: str
    model: str
    ood: tuple[str, ...]
    epochs: int
    samples: int = 32
    batch_size: int = 64
    lr: float = 2e-3
    seeds: int = 1


SETTINGS = {
    "smoke": Setting("digits", "convnet", ("not-digits/letters",), epochs=1, samples=4),
    "cpu": Setting("digits", "convnet", ("not-digits/letters", "not-digits/photos"), epochs=40, seeds=5),
    "paper": Setting("mnist", "lenet5", ("fashion-mnist",), epochs=20, batch_size=128, lr=1e-3, seeds=3),
}


@recipe(
    "baselines",
    "plain, MC dropout, mean-field and variational dropout on one network: accuracy, calibration, out-of-domain",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a method."""
    setting = SETTINGS[preset]
    for name, contestant in CONTESTANTS.items():
        runs = []
        for seed in range(setting.seeds):
            key = {"contestant": repr(contestant), "setting": asdict(setting), "seed": seed}
            work = partial(_run, name, setting, seed)
            runs.append(jobs(key, work, label=f"{name} on {setting.data}, seed {seed}"))
        yield Row(setting.data, name, setting.samples, runs, paper={})


def _run(name: str, setting: Setting, seed: int) -> Metrics:
    return headline(train_and_evaluate(name, setting, seed, progress=False))


def headline(result: Evaluation) -> Metrics:
    """The metrics of the table."""
    ranks = {
        f"{key.removeprefix('ood.').removesuffix('.entropy.auroc')} AUROC": value
        for key, value in result.metrics.items()
        if key.endswith(".entropy.auroc")
    }
    quality = {name: result.metrics[name] for name in ("accuracy", "nll", "brier", "ece")}
    return {**quality, **ranks, "parameters": float(result.cost["parameters"])}


def train_and_evaluate(name: str, setting: Setting, seed: int, *, progress: bool = True) -> Evaluation:
    """One contestant, trained from scratch and evaluated on the test data."""
    import torch
    from torch.utils.data import DataLoader

    import leanbayes as lb

    from ..data import load, loaders
    from ..models import build
    from ..models.auto import fitting

    contestant, data = CONTESTANTS[name], load(setting.data)
    parts = loaders(data, setting.batch_size)
    torch.manual_seed(seed)
    network = fitting(setting.model, data)
    model = build(network["name"], **network["options"])
    if contestant.method is not None:
        lb.bayesianize_(model, contestant.method)
    steps = int(contestant.warmup * setting.epochs * len(parts["train"]))
    history = lb.fit(
        model,
        parts["train"],
        val=parts["val"],
        epochs=setting.epochs,
        lr=setting.lr,
        kl_weight=lb.warmup(0, contestant.kl_weight, steps=steps) if steps else contestant.kl_weight,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setting.epochs),
        seed=seed,
        progress=progress,
    )
    others = {o: DataLoader(load(o, parts="test", normalise=data).test, 256) for o in setting.ood}
    return lb.evaluate(
        model,
        parts["test"],
        ood=others,
        samples=setting.samples,
        seed=seed,
        history=history,
        name=name,
        progress=progress,
    )
