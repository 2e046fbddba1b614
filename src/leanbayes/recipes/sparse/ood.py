"""Table 3 of sparse subspace VI: out-of-domain detection by the entropy of the predictive.

AUROC and AUPR, the other data being the positive class; "by information": by the mutual information of label and
weights, which a network without random weights does not have. The paper does not say at which sparsity; 95 % (CIFAR-10)
and 90 % (CIFAR-100) are those of its table 2. mBNN is cited. The networks are those of sparse-accuracy: with the same
--resume folder none is trained again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

from ...data import DataSet, load
from ...evaluation.metrics.ood import aupr, auroc
from ...training.parameter_groups import scale_parameters
from ..experiment import Cell, Experiment
from ..paper import printed
from ..results import Metrics
from .measures import predicted, scores
from .networks import SparseSetup, digits, mlp, published

# a setup, its density, the out-of-domain data, and the most of those data that are looked at
SETUPS: dict[str, tuple[tuple[SparseSetup, float, tuple[str, ...], int | None], ...]] = {
    "smoke": ((digits(), 0.1, ("not-digits/letters",), None),),
    "cpu": ((mlp(seeds=3, without=("dense VI",)), 0.05, ("mnist",), 5000),),
    "paper": (
        (published(), 0.05, ("cifar100", "svhn"), None),
        (published("cifar100"), 0.1, ("cifar10", "svhn"), None),
    ),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method and network; the setting is the density."""
    for setup, density, others, limit in SETUPS[preset]:
        data, measure = setup.training.data, partial(measured, others, limit)
        for name, share, training in setup.compared(density):
            also = {"others": list(others), "others_limit": limit, "paper": printed("sparse-ood", data, name)}
            yield setup.cell(training, f"{name}, other data", name, share, measure, **also)
        if preset == "paper":
            yield Cell(data, "mBNN (cited)", density, seeds=0, paper=printed("sparse-ood", data, "mBNN (cited)"))


def measured(
    others: tuple[str, ...], limit: int | None, model: nn.Module, data: DataSet, samples: int, seed: int
) -> Metrics:
    """Quality on the test part, and how well the predictive detects each of the other sets."""
    inputs, targets = data.test.tensors
    inside = predicted(model, inputs, samples, seed)
    found = scores(inside.probs, targets)
    for name in others:
        other = load(name, parts="test", normalise=data).test.tensors[0][:limit]
        outside = predicted(model, other, samples, seed)
        entropies = inside.entropy, outside.entropy
        found |= {f"{name} AUROC": auroc(*entropies), f"{name} AUPR": aupr(*entropies)}
        if scale_parameters(model):
            found[f"{name} AUROC by information"] = auroc(inside.mutual_information, outside.mutual_information)
    return found


EXPERIMENT = Experiment("sparse-ood", cells)
