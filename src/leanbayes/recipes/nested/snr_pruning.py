"""Table 1 of variational nested dropout: a nested posterior cut to size, beside pruning by signal to noise.

SNR: a Bayesian network of full width (IBNN), whose weights with the lowest |mu| / sigma are set to zero. BN3: the
nested network at the width whose share of weights is nearest to what pruning leaves; the setting is the share
removed, and "removed" what it came to. The figures in brackets are of VGG11 after 600 epochs. BatchNorm's statistics
are re-estimated after each cut, for both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..experiment import Cell, Experiment, grid
from ..figures.charts import lines
from ..paper import printed
from ..results import Metrics
from .networks import SETUPS, NestedSetup, at_width, quality, share_of_weights

REMOVED = (0.0, 0.2, 0.4, 0.6, 0.8)


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method and share of weights removed."""
    for setup in SETUPS[preset]:
        for at in grid(name=("SNR", "BN3"), removed=REMOVED):
            name, removed = at["name"], at["removed"]
            kind = "IBNN" if name == "SNR" else "BN3"
            paper = printed("snr-pruning", setup.training.data, name, f"{removed:g}")
            also = {"paper": paper, "measured": "snr-pruning", "removed": removed}
            yield setup.cell(kind, name, removed, partial(measured, setup, kind, removed), **also)


def measured(setup: NestedSetup, kind: str, removed: float, model: nn.Module, data: DataSet, seed: int) -> Metrics:
    """Quality of a network without so many of its weights."""
    if kind == "BN3":
        width, left = nearest_width(model, 1 - removed)
        found = at_width(setup, model, data, width)
        return {**quality(setup, found, data, seed), "removed": 1 - left, "width": width}
    pruned = copy.deepcopy(model)
    report = lb.prune_(pruned, by="snr", fraction=removed) if removed else None
    lb.recalibrate_(pruned, data.train, data=setup.clean)
    gone = 1 - report.kept / report.total if report else 0.0
    return {**quality(setup, pruned, data, seed), "removed": gone}


def nearest_width(model: nn.Module, share: float) -> tuple[float, float]:
    """The width whose share of weights is nearest to `share`, and that share."""
    shares = {width: share_of_weights(model, width) for width in lb.widths(model)}
    width = min(shares, key=lambda one: abs(shares[one] - share))
    return width, shares[width]


FIGURE = lines("Cut or pruned", "share of weights removed", ("accuracy", "ece"))
EXPERIMENT = Experiment("snr-pruning", cells, figure=FIGURE)
