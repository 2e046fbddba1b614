"""Figure 3, left, of sparse subspace VI: by which gradients weights are added.

Under one draw (the default), at the means, or averaged over 5 or 10 steps. The paper's bars have no numbers; it finds
minimal differences. The cpu preset trains a perceptron on Fashion-MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..experiment import Cell, Experiment
from ..figures.charts import bars
from .networks import SparseSetup, digits, mlp, published

SETUPS: dict[str, SparseSetup] = {"smoke": digits(), "cpu": mlp(), "paper": published("cifar100")}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every criterion; the setting is the number of passes it looks at."""
    setup = SETUPS[preset]
    several = (5,) if preset == "smoke" else (5, 10)
    choices: list[tuple[str, int, dict[str, Any]]] = [("one draw", 1, {}), ("at the means", 1, {"addition": "mean"})]
    choices += [("several steps", k, {"addition": "steps", "addition_steps": k}) for k in several]
    for name, passes, options in choices:
        yield setup.cell(setup.subspace(0.1, **options), f"{name} ({passes})", name, passes)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['setting']} steps" if row["method"] == "several steps" else row["method"]


EXPERIMENT = Experiment("sparse-addition", cells, figure=bars("Criteria for addition", _name))
