"""Appendix C.2 of variational nested dropout: how many images BatchNorm's statistics need at a new width.

The nested network of nested-widths at every width, its statistics as training left them (averages over all widths),
from 256 and 1,024 images, and from all training images. The paper shows curves and no table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..experiment import Cell, Experiment, grid
from ..figures.charts import lines
from ..results import Metrics
from .networks import SETUPS, NestedSetup, at_width, quality

IMAGES: dict[str, int | None] = {"as trained": 0, "256 images": 256, "1,024 images": 1024, "all images": None}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every number of images and width."""
    for setup in SETUPS[preset]:
        for at in grid(name=IMAGES, width=setup.widths):
            name, width, images = at["name"], at["width"], IMAGES[at["name"]]
            also = {"measured": "bn-statistics", "at": width, "images": images}
            yield setup.cell("BN3", name, width, partial(measured, setup, width, images), **also)


def measured(
    setup: NestedSetup, width: float, images: int | None, model: nn.Module, data: DataSet, seed: int
) -> Metrics:
    """Quality with statistics from so many images; 0 leaves them as they are."""
    if images == 0:
        lb.set_width_(model, width)
    else:
        model = at_width(setup, model, data, width, clean=images)
    return quality(setup, model, data, seed)


FIGURE = lines("BatchNorm statistics at a width", "width", ("accuracy", "nll"))
EXPERIMENT = Experiment("bn-statistics", cells, figure=FIGURE)
