"""Table 2 of variational nested dropout: the smallest nested network, sparse variational dropout, and averages.

smallest BN3: at the narrowest width. SVB: variational dropout (Molchanov et al., 2017), pruned at log alpha = 3; its
own objective says how many weights are left. BN3-MC: an average over widths that are drawn as in training. BN3: full
width. weight usage: of the weights of Linear layers and convolutions, that of BN3-MC averaged over 200 draws of the
widths. The figures in brackets are of VGG11 after 600 epochs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

import leanbayes as lb

from ...data import DataSet
from ...ordering.unit import units
from ..experiment import Cell, Experiment
from ..paper import printed
from ..results import Metrics
from .networks import SETUPS, NestedSetup, at_width, quality, share_of_weights


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method; the setting says whether its width is fixed or drawn."""
    for setup in SETUPS[preset]:
        for name in ("smallest BN3", "SVB", "BN3-MC", "BN3"):
            kind, drawn = "SVB" if name == "SVB" else "BN3", "sampled" if name == "BN3-MC" else "fixed"
            paper = printed("limited-parameters", setup.training.data, name)
            also: dict[str, Any] = {"paper": paper, "measured": "limited-parameters", "row": name}
            yield setup.cell(kind, name, drawn, partial(measured, setup, name), **also)


def measured(setup: NestedSetup, name: str, model: nn.Module, data: DataSet, seed: int) -> Metrics:
    """Quality, and how many of the weights it takes."""
    if name == "SVB":
        report = lb.prune_(model, by="log_alpha")
        lb.recalibrate_(model, data.train, data=setup.clean)
        return {**quality(setup, model, data, seed), "weight usage": report.kept / report.total}
    if name == "BN3-MC":
        shares = drawn_shares(model)
        usage = {"weight usage": statistics.mean(shares), "weight usage, std": statistics.stdev(shares)}
        return {**quality(setup, at_width(setup, model, data, None), data, seed), **usage}
    width = lb.widths(model)[0 if name == "smallest BN3" else -1]
    found = quality(setup, at_width(setup, model, data, width), data, seed)
    return {**found, "weight usage": share_of_weights(model, width)}


def drawn_shares(model: nn.Module, draws: int = 200) -> list[float]:
    """The share of weights that each of so many draws of the widths uses."""
    found, generator = units(model), torch.Generator().manual_seed(0)
    known: dict[tuple[int, ...], float] = {}
    shares = []
    for _ in range(draws):
        noise = {id(unit.draw): unit.draw.noise(generator) for unit in found}
        nodes = tuple(unit.drawn(noise[id(unit.draw)]) for unit in found)
        if nodes not in known:
            known[nodes] = share_of_weights(model, {u.name: u.fraction(k) for u, k in zip(found, nodes, strict=True)})
        shares.append(known[nodes])
    return shares


EXPERIMENT = Experiment("limited-parameters", cells)
