"""Figure 3, right, of sparse subspace VI: where sigma of a new weight starts; and the KL's warm-up, with and without.

The mean of the layer (the default), or a small constant. The paper's figure has no numbers; it finds the best constant
as good as the mean. The cpu preset trains a perceptron on Fashion-MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .base import Jobs, Row, recipe
from .sparse import Run, Setting, digits, mlp, published, seeds

SETTINGS: dict[str, Setting] = {"smoke": digits(), "cpu": mlp(), "paper": published("cifar100")}
CONSTANTS = (1e-5, 1e-4, 1e-3, 1e-2)


@recipe(
    "sparse-init",
    "sparse subspace VI, figure 3 right: sigma of new weights; and training without the KL's warm-up",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for the mean, one for every constant, and two without warm-up; the setting is that sigma."""
    setting = SETTINGS[preset]
    default = setting.subspace(0.1)
    found: list[tuple[str, str | float, Run]] = [("sigma of the layer", "mean", default)]
    for value in CONSTANTS[1:3] if preset == "smoke" else CONSTANTS:
        found.append(("a constant sigma", value, setting.subspace(0.1, new_std=value)))
    found.append(("no warm-up", "mean", replace(default, warmup=0.0)))
    found.append(("dense VI", "none new", setting.dense()))
    found.append(("dense VI, no warm-up", "none new", replace(setting.dense(), warmup=0.0)))
    for name, which, run in found:
        yield Row(setting.label, name, which, seeds(jobs, setting, run, f"{name} ({which})"), paper={})


def figure(result: Mapping[str, Any]) -> str:
    """Figure 3, right, as SVG: a bar a choice, its spread over seeds on it."""
    from ..report.sparse import bars

    return bars(result, "Sigma of new weights", _name)


def _name(row: Mapping[str, Any]) -> str:
    constant = isinstance(row["setting"], float)
    return f"{row['method']} of {row['setting']:g}" if constant else row["method"]
