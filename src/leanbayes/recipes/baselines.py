"""The library's methods side by side, on one network.

No paper's table, but the yardstick for those that follow. The cpu preset is `leanbayes demo` with five seeds; "paper"
stands here for a longer run, LeNet-5 on MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..methods import (
    Dropout,
    Ensemble,
    MeanField,
    Method,
    Nested,
    Patch,
    SparseSubspace,
    Variance,
    VariationalDropout,
)
from .base import Jobs, Metrics, Row, recipe

if TYPE_CHECKING:
    from ..evaluation import Evaluation


@dataclass(frozen=True)
class Contestant:
    """A method (or rules), the weight of its KL, the share of training over which that weight rises, how many times as
    long it is trained, and the widths at which a nested network is asked, a row each.
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


# later methods join here, and so the demo's table
CONTESTANTS: dict[str, Contestant] = {
    "plain network": Contestant(None),
    "MC dropout": Contestant(Dropout(0.2)),
    "mean-field": Contestant(MeanField()),
    "mean-field, tempered": Contestant(MeanField(), kl_weight=0.1),
    "variational dropout": Contestant(VariationalDropout(), warmup=0.5),
    # the first dense layer; it starts beyond alpha = 1, which from -5 would take longer than these runs last
    "variance network": Contestant({"dense1": Variance(log_alpha=2.0)}, warmup=0.5),
    "deep ensemble of 3": Contestant(Ensemble(members=3), rounds=3),  # as many epochs for each member
    "sparse subspace, 10 %": Contestant(SparseSubspace(density=0.1, interval=50), kl_weight=0.1),
    "patched output": Contestant({"dense2": Patch(components=5)}, kl_weight=0.1),
    # all widths at once take longer
    "nested": Contestant(Nested(groups=16, base_groups=1), kl_weight=0.1, rounds=2, widths=(0.25, 0.5, 1.0)),
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
    "all methods on one network, beside a plain one: accuracy, calibration, out-of-domain",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a method, and one for each of its widths."""
    setting = SETTINGS[preset]
    for name, contestant in CONTESTANTS.items():
        runs = []
        for seed in range(setting.seeds):
            key = {"contestant": repr(contestant), "setting": asdict(setting), "seed": seed}
            key |= {"rounds": contestant.rounds} if contestant.rounds > 1 else {}
            key |= {"widths": list(contestant.widths)} if contestant.widths else {}
            work = partial(_run, name, setting, seed)
            runs.append(jobs(key, work, label=f"{name} on {setting.data}, seed {seed}"))
        for number, row in enumerate(contestant.names(name)):
            own = [{k.removeprefix(f"{number} "): v for k, v in run.items() if _belongs(k, number)} for run in runs]
            yield Row(setting.data, row, setting.samples, own, paper={})


def _belongs(metric: str, number: int) -> bool:
    """Metrics of the rows after the first have its number in front."""
    first, _, rest = metric.partition(" ")
    return first == str(number) if rest and first.isdigit() else number == 0


def _run(name: str, setting: Setting, seed: int) -> Metrics:
    found: Metrics = {}
    for number, evaluation in enumerate(train_and_evaluate(name, setting, seed, progress=False)):
        before = f"{number} " if number else ""
        found |= {f"{before}{metric}": value for metric, value in headline(evaluation).items()}
    return found


def headline(result: Evaluation) -> Metrics:
    """The metrics of the table."""
    ranks = {
        f"{key.removeprefix('ood.').removesuffix('.entropy.auroc')} AUROC": value
        for key, value in result.metrics.items()
        if key.endswith(".entropy.auroc")
    }
    quality = {name: result.metrics[name] for name in ("accuracy", "nll", "brier", "ece")}
    return {**quality, **ranks, "parameters": float(result.cost["parameters"])}


def train_and_evaluate(name: str, setting: Setting, seed: int, *, progress: bool = True) -> Iterator[Evaluation]:
    """One contestant, trained from scratch and evaluated on the test data, at each of its widths."""
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
        lb.bayesianize_(model, contestant.method)  # type: ignore[arg-type]
    epochs = contestant.rounds * setting.epochs
    steps = int(contestant.warmup * epochs * len(parts["train"]))
    history = lb.fit(
        model,
        parts["train"],
        val=parts["val"],
        epochs=epochs,
        lr=setting.lr,
        kl_weight=lb.warmup(0, contestant.kl_weight, steps=steps) if steps else contestant.kl_weight,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs),
        seed=seed,
        progress=progress,
    )
    others = {o: DataLoader(load(o, parts="test", normalise=data).test, 256) for o in setting.ood}
    for row, width in zip(contestant.names(name), contestant.widths or (None,), strict=True):
        if width is not None:
            lb.set_width_(model, width)
        yield lb.evaluate(
            model,
            parts["test"],
            ood=others,
            samples=setting.samples,
            seed=seed,
            history=history,
            name=row,
            progress=progress,
        )
