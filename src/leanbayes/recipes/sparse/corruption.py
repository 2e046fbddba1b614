"""Figure 4 of sparse subspace VI: accuracy, loss and calibration on corrupted test images, by severity.

Averaged over all corruptions that suit the images; severity 0 is the same part of the test set without corruption.
The paper compares with mBNN and has no table of it; here dense VI and RigL stand beside. The networks are those of
sparse-accuracy: with the same --resume folder none is trained again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

from ...data import DataSet
from ..corrupted import Sweep
from ..experiment import Cell, Experiment
from ..figures.charts import lines
from ..results import Measured, Metrics
from .measures import predicted, scores
from .networks import KL_WEIGHTS, SparseSetup, digits, lenet, mlp, published

SMOKE = Sweep(limit=60, names=("gaussian_noise", "contrast"), severities=(1, 5))
SETUPS: dict[str, tuple[tuple[SparseSetup, float, Sweep], ...]] = {  # with the density
    "smoke": ((digits(), 0.1, SMOKE),),
    "cpu": (
        (mlp(kl_weights=KL_WEIGHTS), 0.05, Sweep()),
        (lenet(seeds=1, kl_weights=KL_WEIGHTS), 0.05, Sweep()),
    ),
    "paper": ((published(), 0.05, Sweep(limit=10_000)), (published("cifar100"), 0.1, Sweep(limit=10_000))),
}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every method, which makes a row for every severity."""
    for setup, density, sweep in SETUPS[preset]:
        for name, _, training in setup.compared(density):
            yield setup.cell(training, f"{name}, corrupted", name, density, partial(measured, sweep), **sweep.key())


def measured(sweep: Sweep, model: nn.Module, data: DataSet, samples: int, seed: int) -> Measured:
    """All metrics by severity, the mean over corruptions."""
    found: dict[int, list[Metrics]] = {}
    for _, severity, x, y in sweep.images(data):
        found.setdefault(severity, []).append(scores(predicted(model, x, samples, seed).probs, y))
    return {"rows": [{"setting": at, **_mean(each)} for at, each in found.items()]}


def _mean(each: list[Metrics]) -> Metrics:
    return {name: sum(one[name] for one in each) / len(each) for name in each[0]}


FIGURE = lines("Corrupted test images", "severity", ("accuracy", "nll", "ece"))
EXPERIMENT = Experiment("sparse-corruption", cells, figure=FIGURE)
