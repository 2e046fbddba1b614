"""Figure 3, right, of sparse subspace VI: where sigma of a new weight starts; and the KL's warm-up, with and without.

The mean of the layer (the default), or a small constant. The paper's figure has no numbers; it finds the best constant
as good as the mean. The cpu preset trains a perceptron on Fashion-MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..experiment import Cell, Experiment
from ..figures.charts import bars
from .networks import SparseSetup, SparseTraining, digits, mlp, published

SETUPS: dict[str, SparseSetup] = {"smoke": digits(), "cpu": mlp(), "paper": published("cifar100")}
CONSTANTS = (1e-5, 1e-4, 1e-3, 1e-2)


def cells(preset: str) -> Iterator[Cell]:
    """A row for the mean, one for every constant, and those without warm-up; the setting is sigma of new weights."""
    setup = SETUPS[preset]
    default = setup.subspace(0.1)
    found: list[tuple[str, str | float, SparseTraining]] = [("sigma of the layer", "mean", default)]
    for value in CONSTANTS[1:3] if preset == "smoke" else CONSTANTS:
        found.append(("a constant sigma", value, setup.subspace(0.1, new_std=value)))
    found.append(("no warm-up", "mean", replace(default, warmup=0.0)))
    found.append(("dense VI", "none new", setup.dense()))
    found.append(("dense VI, no warm-up", "none new", replace(setup.dense(), warmup=0.0)))
    for name, which, training in found:
        yield setup.cell(training, f"{name} ({which})", name, which)


def _name(row: Mapping[str, Any]) -> str:
    constant = isinstance(row["setting"], float)
    return f"{row['method']} of {row['setting']:g}" if constant else row["method"]


EXPERIMENT = Experiment("sparse-init", cells, figure=bars("Sigma of new weights", _name))
