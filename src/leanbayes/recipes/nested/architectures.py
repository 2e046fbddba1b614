"""ResNeXt and MobileNetV2 nested: figure 10 of variational nested dropout on networks with additions and groups.

The rows are those of `nested-widths`. What can be ordered are the channels inside of the blocks: additions tie all
others together. Both networks are small here, and see 5,000 images of Fashion-MNIST for 12 epochs under one seed; the
paper trains "the ResNeXt-Cifar model" on Tiny-ImageNet, and reports MobileNetV2 in its supplement alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..experiment import Cell, Experiment
from ..figures.charts import lines
from ..training import Training
from .networks import NestedSetup, digits
from .widths import rows

NETWORKS: dict[str, dict[str, Any]] = {
    "resnext_cifar": {"depth": 11, "cardinality": 4, "base_width": 32, "width": 0.25},
    "mobilenet_v2": {"width": 0.25},
}


def setups(preset: str) -> list[NestedSetup]:
    """The networks of a preset; "paper" has them whole."""
    if preset == "smoke":
        small = {"depth": 11, "cardinality": 2, "base_width": 8, "width": 0.5}
        training = replace(digits().training, model="resnext_cifar", options=small)
        return [digits(training=training, ordered="stage*", dense="fc")]
    short = preset == "cpu"
    widths = (0.25, 0.5, 1.0) if short else (0.25, 0.5, 0.75, 1.0)
    limits: dict[str, Any] = {"epochs": 12, "limit": 5000, "test_limit": 5000} if short else {"epochs": 600}
    found = []
    for model, options in NETWORKS.items():
        training = Training("fashion-mnist", model, options if short else {}, batch_size=100, **limits)
        blocks: dict[str, Any] = {"ordered": "stage*", "dense": "fc", "groups": 8, "label": f"fashion-mnist, {model}"}
        found.append(NestedSetup(training, "mnist", widths=widths, seeds=1, **blocks))
    return found


def cells(preset: str) -> Iterator[Cell]:
    """A row for every network, method and width."""
    for setup in setups(preset):
        yield from rows(replace(setup, alone=(1.0,)), ("BN3", "DT-BN3", "FN3", "IBNN"))


FIGURE = lines("Other networks, trained once, asked at every width", "width", ("accuracy", "nll", "ece", "AUROC"))
EXPERIMENT = Experiment("nested-architectures", cells, figure=FIGURE)
