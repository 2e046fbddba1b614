"""A cascade of the widths of one nested network, beside the whole network: accuracy, calibration, arithmetic, time.

One nested network is trained at 25, 50 and 100 % of its channels (a width drawn for every batch), cut to each, and its
BatchNorm statistics re-estimated there. A temperature for each stage and the thresholds of the cascade are found on
images that were held out; the test images are looked at once. No paper has this table.

loss: points of accuracy below the whole network. MACs: on average over the test images, as a share of the whole
network's. time, batch N: of the cascade over the whole network's, in turns, both with their BatchNorm folded into the
convolutions; the median over turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import nn

import leanbayes as lb

from ..methods.nested import WEIGHTS
from .experiment import Cell, Experiment
from .nested.networks import NestedTraining

WIDTHS = (0.25, 0.5, 1.0)
ORDERED = lb.Nested(
    groups=4,
    base_groups=1,
    tails="categorical",
    probabilities=(1.0, 1.0, 0.0, 1.0),
    skip=True,
    weights=replace(WEIGHTS, log_alpha=-3.0),
)


def training(data: str, **changes: Any) -> NestedTraining:
    """A small VGG whose convolutions are nested; its dense layers stay as they are."""
    options = {"options": {"width": 4}, "epochs": 5, "batch_size": 100, "limit": 20_000, **changes}
    return NestedTraining(data, "vgg_small", methods={"conv*": ORDERED, "*": None}, **options)


SETUPS: dict[str, tuple[NestedTraining, ...]] = {
    "smoke": (training("digits", options={"width": 0.5, "hidden": 16}, epochs=2, lr=3e-3, batch_size=50, limit=600),),
    "cpu": (training("fashion-mnist"), training("cifar10", epochs=7)),
}
SETUPS["paper"] = tuple(replace(one, epochs=60, limit=45_000, augment=True) for one in SETUPS["cpu"])
