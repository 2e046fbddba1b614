"""Figure 1 of variational nested dropout: what the tails of a nested network have learned, layer by layer.

A row a layer of the networks of nested-widths. "moved" is the total variation between its tail probabilities and the
uniform ones that they started from; "between seeds" that between the layer in two trainings, "between layers" that
between it and other layers of the same network, both averages over pairs. A distance between layers no larger than that
between seeds has no meaning. The curve "tails" has
the probability of every node that it and the nodes before it are kept, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..experiment import Cell, Experiment, Results
from ..figures.nested import tails as draw_tails
from ..results import Measured, Metrics, Row
from .networks import SETUPS

Tails = dict[str, list[float]]
"""Tail probabilities by layer."""


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every network, which makes a row for every layer."""
    for setup in SETUPS[preset]:
        yield setup.cell("BN3", "BN3", "all layers", measured, measured="nested-tails")


def measured(model: nn.Module, data: DataSet, seed: int) -> Measured:
    """A curve for every layer: its tail probabilities."""
    found = lb.importance(model)
    return {name: [{"node": j, "probability": float(p)} for j, p in enumerate(beta, 1)] for name, beta in found.items()}


def rows(results: Results) -> Iterator[Row]:
    """A row for every layer; the first run has what compares runs."""
    for network, runs in results:
        found: list[Tails] = [
            {layer: [point["probability"] for point in points] for layer, points in run.items()} for run in runs
        ]
        for layer in found[0]:
            each = [{**described(tails, layer), "tails": run[layer]} for tails, run in zip(found, runs, strict=True)]
            if len(found) > 1:
                each[0]["between seeds"] = average([tails[layer] for tails in found])
            yield Row(network.dataset, network.method, layer, each)


def figure(result: Mapping[str, Any]) -> str:
    """The tails of every layer, averages over seeds, as SVG."""
    several = len({row["dataset"] for row in result["rows"]}) > 1
    curves: Tails = {}
    for row in result["rows"]:
        name = f"{row['setting']}, {row['dataset']}" if several else row["setting"]
        curves[name] = [point["probability"]["mean"] for point in row["curves"]["tails"]]
    return draw_tails(curves)


def described(tails: Tails, layer: str) -> Metrics:
    """One layer of one network: how far it has moved, how far it is from others of as many nodes.

    >>> described({"a": [0.5, 0.5], "b": [0.25, 0.75]}, "b")
    {'moved': 0.25, 'between layers': 0.25}
    """
    own = tails[layer]
    others = [beta for name, beta in tails.items() if name != layer and len(beta) == len(own)]
    apart = {"between layers": sum(distance(own, beta) for beta in others) / len(others)} if others else {}
    return {"moved": distance(own, [1 / len(own)] * len(own)), **apart}


def average(found: Sequence[Sequence[float]]) -> float:
    """The average distance of two."""
    pairs = list(combinations(found, 2))
    return sum(distance(a, b) for a, b in pairs) / len(pairs)


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Total variation.

    >>> distance([1.0, 0.0], [0.5, 0.5])
    0.5
    """
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2


EXPERIMENT = Experiment("nested-tails", cells, rows, figure)
