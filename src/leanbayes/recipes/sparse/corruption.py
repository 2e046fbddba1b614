"""Figure 4 of sparse subspace VI: accuracy, loss and calibration on corrupted test images, by severity.

Averaged over all corruptions that suit the images; severity 0 is the clean part of the test set that the others spoil.
The paper compares with mBNN and has no table of it; here dense VI and RigL stand beside. The networks are those of
sparse-accuracy: with the same --resume folder none is trained again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from ...data import DataSet
from ..corrupted import corrupted_tests
from ..experiment import Cell, Experiment
from ..figures.sparse import lines
from ..results import Measured, Metrics
from .measures import predicted, scores
from .networks import SparseSetup, digits, lenet, mlp, published


@dataclass(frozen=True)
class CorruptedSetup:
    """A setup, the density, and the corruptions: the first `limit` test images, `names` (none: all that suit)."""

    setup: SparseSetup
    density: float = 0.05
    limit: int = 500
    names: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)


SETUPS: dict[str, tuple[CorruptedSetup, ...]] = {
    "smoke": (
        CorruptedSetup(digits(), density=0.1, limit=60, names=("gaussian_noise", "contrast"), severities=(1, 5)),
    ),
    "cpu": (CorruptedSetup(mlp()), CorruptedSetup(lenet(seeds=1))),
    "paper": (
        CorruptedSetup(published(), limit=10_000),
        CorruptedSetup(published("cifar100"), density=0.1, limit=10_000),
    ),
}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every method, which makes a row for every severity."""
    for asked in SETUPS[preset]:
        setup, density = asked.setup, asked.density
        also: dict[str, Any] = {"images": asked.limit, "names": list(asked.names), "severities": list(asked.severities)}
        for name, training in (
            ("dense VI", setup.dense()),
            ("RigL", setup.rigl(density)),
            ("sparse subspace", setup.subspace(density)),
        ):
            measure = partial(measured, asked)
            yield setup.cell(training, f"{name}, corrupted", name, density, measure, **also)


def measured(asked: CorruptedSetup, model: nn.Module, data: DataSet, samples: int, seed: int) -> Measured:
    """All metrics by severity, the mean over corruptions."""
    found: dict[int, list[Metrics]] = {}
    for _, severity, x, y in corrupted_tests(data, asked.limit, asked.names, asked.severities):
        found.setdefault(severity, []).append(scores(predicted(model, x, samples, seed).probs, y))
    return {"rows": [{"setting": at, **_mean(each)} for at, each in found.items()]}


def _mean(each: list[Metrics]) -> Metrics:
    return {name: sum(one[name] for one in each) / len(each) for name in each[0]}


FIGURE = lines("Corrupted test images", "severity", ("accuracy", "nll", "ece"))
EXPERIMENT = Experiment("sparse-corruption", cells, figure=FIGURE)
