"""Table 3 of sparse subspace VI: telling other data by the entropy of the predictive.

AUROC and AUPR, the other data being the positive class. The paper does not say at which sparsity; 95 % (CIFAR-10) and
90 % (CIFAR-100) are those of its table 2. mBNN is cited. The networks are those of sparse-accuracy: with the same
--resume folder none is trained again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from . import workload
from .base import Jobs, Metrics, Row, recipe
from .sparse import Setting, digits, done, lenet, published, resnet
from .sparse_measures import quality

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data import DataSet


@dataclass(frozen=True)
class Table:
    """A setting, the data that the network should doubt, its density, and the most of those data that are looked at."""

    setting: Setting
    others: tuple[str, ...]
    density: float = 0.05
    limit: int | None = None


SETTINGS: dict[str, tuple[Table, ...]] = {
    "smoke": (Table(digits(), ("not-digits/letters",), density=0.1),),
    "cpu": (Table(lenet(), ("mnist",), limit=5000), Table(resnet(seeds=1), ("svhn",), limit=2000)),
    "paper": (
        Table(published(), ("cifar100", "svhn")),
        Table(published("cifar100"), ("cifar10", "svhn"), density=0.1),
    ),
}
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "cifar10": {
        "sparse subspace": {"cifar100 AUROC": 0.86, "cifar100 AUPR": 0.84, "svhn AUROC": 0.93, "svhn AUPR": 0.96},
        "mBNN (cited)": {"cifar100 AUROC": 0.84, "cifar100 AUPR": 0.81, "svhn AUROC": 0.89, "svhn AUPR": 0.94},
    },
    "cifar100": {
        "sparse subspace": {"cifar10 AUROC": 0.80, "cifar10 AUPR": 0.77, "svhn AUROC": 0.85, "svhn AUPR": 0.91},
        "mBNN (cited)": {"cifar10 AUROC": 0.76, "cifar10 AUPR": 0.72, "svhn AUROC": 0.78, "svhn AUPR": 0.88},
    },
}


@recipe(
    "sparse-ood",
    "sparse subspace VI, table 3: AUROC and AUPR of out-of-domain data, beside dense VI and RigL",
    seeds={name: max(table.setting.seeds for table in tables) for name, tables in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a method, for every network; the setting is the density."""
    for table in SETTINGS[preset]:
        setting, density = table.setting, table.density
        known: Mapping[str, Mapping[str, float]] = PAPER.get(setting.run.data, {})
        found = [
            ("dense VI", 1.0, setting.dense()),
            ("RigL", density, setting.rigl(density)),
            ("sparse subspace", density, setting.subspace(density)),
        ]
        also: dict[str, Any] = {"samples": setting.samples, "others": list(table.others), "others_limit": table.limit}
        for name, share, run in found:
            runs = []
            for seed in range(setting.seeds):
                measure = partial(measured, table=table, seed=seed)
                runs.append(done(jobs, run, seed, f"{name}, other data", measure, **also))
            yield Row(run.data, name, share, runs, paper=known.get(name, {}))
        if preset == "paper":
            yield Row(setting.run.data, "mBNN (cited)", density, [], paper=known["mBNN (cited)"])


def measured(model: nn.Module, data: DataSet, table: Table, seed: int) -> Metrics:
    """Quality on the test part, and how well its entropy tells each of the other sets."""
    from ..data import load
    from ..evaluation.metrics.ood import aupr, auroc

    samples = table.setting.samples
    inside = entropy(model, data.test.tensors[0], samples, seed)
    found = quality(model, data, samples, seed)
    for name in table.others:
        other = load(name, parts="test", normalise=data).test.tensors[0][: table.limit]
        outside = entropy(model, other, samples, seed)
        found |= {f"{name} AUROC": auroc(inside, outside), f"{name} AUPR": aupr(inside, outside)}
    return found


def entropy(model: nn.Module, inputs: Tensor, samples: int, seed: int) -> Tensor:
    """Of the predictive, (N,)."""
    from ..prediction import predict

    options: dict[str, Any] = {"samples": samples, "seed": seed, "chunk": workload.ROWS * samples}
    return predict(model, inputs, task="classification", **options).entropy
