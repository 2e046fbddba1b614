"""Figure 2, left, of sparse subspace VI: accuracy from 50 to 99 % sparsity, beside RigL's.

The paper draws ResNet-18 on CIFAR-100 and has no table of it, so there are no numbers of its here. The cpu preset has a
perceptron on Fashion-MNIST.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..experiment import Cell, Experiment
from ..figures.charts import lines
from .networks import KL_WEIGHTS, SparseSetup, digits, mlp, published

DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
SETUPS: dict[str, tuple[SparseSetup, ...]] = {
    "smoke": (digits(),),
    "cpu": (mlp(kl_weights=KL_WEIGHTS),),
    "paper": (published("cifar100"),),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for dense VI and one for every method and density; the setting is the density."""
    densities = (0.2, 0.05) if preset == "smoke" else DENSITIES
    for setup in SETUPS[preset]:
        found = [("dense VI", 1.0, setup.dense())]
        found += [("sparse subspace", density, setup.subspace(density)) for density in densities]
        found += [("RigL", density, setup.rigl(density)) for density in densities]
        for name, density, training in found:
            yield setup.cell(training, f"{name} at {density:.0%}", name, density)


# what happens beyond 90 % sparsity needs a logarithmic axis
FIGURE = lines("Accuracy against density", "density", ("accuracy", "ece"), log=True)
EXPERIMENT = Experiment("sparse-density", cells, figure=FIGURE)
