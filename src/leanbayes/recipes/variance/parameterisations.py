"""Table 2 of variance networks: one alpha a layer, neuron or weight, or a sigma for every weight, all from -5.

LeNet-5 on MNIST whose first dense layer is a variance layer. All four start from the same distribution. The paper finds
that flexible alphas get stuck at low values, so that the least flexible has the best ELBO; the order here is reported
as it comes out. ELBO and KL are in nats on the training set, with BatchNorm in evaluation mode (the paper's is under
train()); log alpha is the median over the layer's weights, "stuck" the share of them below 0.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..results import Metrics
from .measures import elbo, log_alphas, procedures, shares_below, swapped_accuracy
from .networks import Line, lenet, small, table

Kind = Literal["layer", "neuron", "weight", "additive"]
KINDS: tuple[Kind, ...] = ("layer", "neuron", "weight", "additive")


def lines(preset: str) -> dict[str, Line]:
    """A row for every parameterisation."""
    if preset == "smoke":
        return {kind: Line(small({"4": lb.Variance(kind)}), samples=4) for kind in KINDS}
    return {kind: Line(lenet({"dense1": lb.Variance(kind)}, preset)) for kind in KINDS}


def measured(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """What table 2 has, and log alpha."""
    return {
        **elbo(model, data, seed),
        **procedures(model, data, samples, seed),
        **swapped_accuracy(model, data, samples, seed),
        **log_alphas(model),
        **shares_below(model),
    }


EXPERIMENT = table("variance-parameterisations", lines, measured)
