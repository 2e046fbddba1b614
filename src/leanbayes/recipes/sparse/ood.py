"""Table 3 of sparse subspace VI: telling other data by the entropy of the predictive.

AUROC and AUPR, the other data being the positive class; "by information": by the mutual information of label and
weights, which a network without random weights does not have. The paper does not say at which sparsity; 95 % (CIFAR-10)
and 90 % (CIFAR-100) are those of its table 2. mBNN is cited. The networks are those of sparse-accuracy: with the same
--resume folder none is trained again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from torch import nn

from ...data import DataSet, load
from ...evaluation.metrics.ood import aupr, auroc
from ...training.parameter_groups import scale_parameters
from ..experiment import Cell, Experiment
from ..results import Metrics
from .measures import predicted, scores
from .networks import SparseSetup, digits, lenet, mlp, published


@dataclass(frozen=True)
class OtherData:
    """A setup, the data that its network should doubt, its density, and the most of those data that are looked at."""

    setup: SparseSetup
    others: tuple[str, ...]
    density: float = 0.05
    limit: int | None = None


SETUPS: dict[str, tuple[OtherData, ...]] = {
    "smoke": (OtherData(digits(), ("not-digits/letters",), density=0.1),),
    "cpu": (OtherData(mlp(), ("mnist",), limit=5000), OtherData(lenet(seeds=1), ("mnist",), limit=5000)),
    "paper": (
        OtherData(published(), ("cifar100", "svhn")),
        OtherData(published("cifar100"), ("cifar10", "svhn"), density=0.1),
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


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method and network; the setting is the density."""
    for asked in SETUPS[preset]:
        setup, density, data = asked.setup, asked.density, asked.setup.training.data
        known = PAPER.get(data, {})
        for name, share, training in (
            ("dense VI", 1.0, setup.dense()),
            ("RigL", density, setup.rigl(density)),
            ("sparse subspace", density, setup.subspace(density)),
        ):
            also = {"others": list(asked.others), "others_limit": asked.limit, "paper": known.get(name)}
            yield setup.cell(training, f"{name}, other data", name, share, partial(measured, asked), **also)
        if preset == "paper":
            yield Cell(data, "mBNN (cited)", density, seeds=0, paper=known["mBNN (cited)"])


def measured(asked: OtherData, model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Quality on the test part, and how well the predictive tells each of the other sets."""
    inputs, targets = data.test.tensors
    inside = predicted(model, inputs, samples, seed)
    found = scores(inside.probs, targets)
    for name in asked.others:
        other = load(name, parts="test", normalise=data).test.tensors[0][: asked.limit]
        outside = predicted(model, other, samples, seed)
        entropies = inside.entropy, outside.entropy
        found |= {f"{name} AUROC": auroc(*entropies), f"{name} AUPR": aupr(*entropies)}
        if scale_parameters(model):
            found[f"{name} AUROC by information"] = auroc(inside.mutual_information, outside.mutual_information)
    return found


EXPERIMENT = Experiment("sparse-ood", cells)
