"""Figure 10 of variational nested dropout: accuracy, calibration and out-of-domain detection against the width.

BN3: the nested posterior, trained once and evaluated at every width. DT-BN3: the same at its means. FN3: nested
dropout, with the same sharing of draws and uniform tails. FN3-TS: FN3 with a temperature for every width, fitted to
images that were held out. IBNN: a Bayesian network trained for each width, in the shape that BN3 is cut to.

The paper shows curves and no table. Its networks see all of CIFAR-10 for 600 epochs; those of the cpu preset are
small, see a part of the data for 30, and IBNN is trained at the ends of the range alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..experiment import Cell, Experiment, grid
from ..figures.charts import lines
from ..results import Metrics
from .networks import SETUPS, NestedSetup, at_width, quality

KINDS = {"BN3": "BN3", "DT-BN3": "BN3", "FN3": "FN3", "FN3-TS": "FN3", "IBNN": "IBNN"}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every network, method and width."""
    for setup in SETUPS[preset]:
        yield from rows(setup, tuple(KINDS))


def rows(setup: NestedSetup, names: Sequence[str]) -> Iterator[Cell]:
    """A row for every one of these methods and width; the setting is the width."""
    nested = grid(name=[name for name in names if name != "IBNN"], width=setup.widths)
    for at in [*nested, *grid(name=["IBNN"], width=setup.alone)]:
        name, width, kind = at["name"], at["width"], KINDS[at["name"]]
        also = {"measured": name, "at": width, "held_out": setup.held_out}
        own = width if kind == "IBNN" else 1.0
        yield setup.cell(kind, name, width, partial(measured, setup, name, width), own, **also)


def measured(setup: NestedSetup, name: str, width: float, model: nn.Module, data: DataSet, seed: int) -> Metrics:
    """Quality at a width."""
    if name == "IBNN":
        return quality(setup, model, data, seed)
    means = name == "DT-BN3"
    model = at_width(setup, model, data, width, means=means)
    if name == "FN3-TS":
        lb.calibrate_(model, setup.training.held_out_images(setup.held_out), samples=1, progress=False)
    return quality(setup, model, data, seed, **({"mean_only": True} if means else {}))


FIGURE = lines("Trained once, asked at every width", "width", ("accuracy", "nll", "ece", "AUPR", "AUROC"))
EXPERIMENT = Experiment("nested-widths", cells, figure=FIGURE)
