"""Table 2 of variance networks: one alpha a layer, neuron or weight, or a sigma for every weight, all from -5.

LeNet-5 on MNIST whose first dense layer is a variance layer. All four start from the same distribution. The paper finds
that flexible alphas get stuck at low values, so that the least flexible has the best ELBO; the order here is reported
as it comes out. ELBO and KL are in nats on the training set, with BatchNorm in evaluation mode (the paper's is under
train()); log alpha is the median over the layer's weights, "stuck" the share of them below 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from ..methods import Variance
from .base import Jobs, Metrics, Row, recipe
from .variance import done, elbo, log_alphas, procedures, shares_below, swapped_accuracy
from .variance_accuracy import lenet, small

if TYPE_CHECKING:
    from torch import nn

    from ..data import DataSet

Kind = Literal["layer", "neuron", "weight", "additive"]
PAPER: dict[Kind, dict[str, float]] = {
    "layer": {"ELBO": -5.9e2, "deterministic": 0.113, "ensemble": 0.992},
    "neuron": {"ELBO": -7.7e2, "deterministic": 0.113, "ensemble": 0.992},
    "weight": {"ELBO": -6.4e4, "deterministic": 0.813, "ensemble": 0.992},
    "additive": {"ELBO": -2.3e4, "deterministic": 0.963, "ensemble": 0.992},
}


@recipe(
    "variance-parameterisations",
    "variance networks, table 2: ELBO and accuracy with alpha per layer, neuron and weight, and with sigma; LeNet-5",
    seeds={"smoke": 1, "cpu": 1, "paper": 1},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a parameterisation."""
    samples = 4 if preset == "smoke" else 20
    for kind, paper in PAPER.items():
        method = Variance(kind)
        run = small({"4": method}) if preset == "smoke" else lenet({"dense1": method}, preset)
        metrics = done(jobs, run, 0, kind, partial(measured, samples=samples, seed=0), samples=samples)
        yield Row(run.data, kind, run.epochs, [metrics], paper={} if preset == "smoke" else paper)


def measured(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """What table 2 has, and log alpha."""
    return {
        **elbo(model, data, seed),
        **procedures(model, data, samples, seed),
        **swapped_accuracy(model, data, samples, seed),
        **log_alphas(model),
        **shares_below(model),
    }
