"""Figure 2, left, of sparse subspace VI: accuracy from 50 to 99 % sparsity, beside RigL's.

The paper draws ResNet-18 on CIFAR-100 and has no table of it, so there are no numbers of its here. The cpu preset has a
perceptron (three seeds) and LeNet-5 (one, the first of those of sparse-accuracy) on Fashion-MNIST; a curve of the
ResNet would take too long there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import Jobs, Row, recipe
from .sparse import Setting, digits, lenet, mlp, published, seeds

DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
SETTINGS: dict[str, tuple[Setting, ...]] = {
    "smoke": (digits(),),
    "cpu": (mlp(), lenet(seeds=1)),
    "paper": (published("cifar100"),),
}


@recipe(
    "sparse-density",
    "sparse subspace VI, figure 2 left: accuracy and calibration against density, beside RigL's",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for dense VI and one for every method and density; the setting is the density."""
    for setting in SETTINGS[preset]:
        densities = (0.2, 0.05) if preset == "smoke" else DENSITIES
        found = [("dense VI", 1.0, setting.dense())]
        found += [("sparse subspace", density, setting.subspace(density)) for density in densities]
        found += [("RigL", density, setting.rigl(density)) for density in densities]
        for name, density, run in found:
            yield Row(setting.label, name, density, seeds(jobs, setting, run, f"{name} at {density:.0%}"), paper={})


def figure(result: Mapping[str, Any]) -> str:
    """Accuracy and Guo's ECE against density as SVG; what happens beyond 90 % sparsity needs a logarithmic axis."""
    from ..report.sparse import lines

    return lines(result, "Accuracy against density", "density", float, ("accuracy", "ece"), log=True)
