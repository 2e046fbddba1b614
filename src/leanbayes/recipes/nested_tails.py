"""Figure 1 of variational nested dropout: what the tails of a nested network have learned, layer by layer.

A row a layer of the networks of nested-widths. "moved" is the total variation between its tail probabilities and the
uniform ones that they started from; "between seeds" that between the layer in two trainings, "between layers" that
between it and other layers of the same network, both averages over pairs. A distance between layers no larger than that
between seeds says nothing about layers. "tail j": the probability that the first j nodes are kept, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from .base import Jobs, Metrics, Row, recipe
from .nested import SETTINGS, Setting, network, piece_key

Tails = dict[str, list[float]]
"""By layer."""


@recipe(
    "nested-tails",
    "nested posteriors, figure 1: learned tail probabilities by layer",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every layer; the first run has what compares runs."""
    for setting in SETTINGS[preset]:
        found = [learned(jobs, setting, seed) for seed in range(setting.seeds)]
        for layer in found[0]:
            runs = [described(tails, layer) for tails in found]
            if len(found) > 1:
                runs[0]["between seeds"] = average([a[layer] for a in found])
            yield Row(setting.run.data, "BN3", layer, runs, paper={})


def figure(result: Mapping[str, Any]) -> str:
    """The tails of every layer, averages over seeds, as SVG."""
    from ..report.nested import tails

    several = len({row["dataset"] for row in result["rows"]}) > 1
    curves: Tails = {}
    for row in result["rows"]:
        name = f"{row['setting']}, {row['dataset']}" if several else row["setting"]
        curves[name] = [v["mean"] for k, v in row["metrics"].items() if k.startswith("tail ")]
    return tails(curves)


def learned(jobs: Jobs, setting: Setting, seed: int) -> Tails:
    """The tail probabilities of every layer of a trained network."""
    key = piece_key(setting, "BN3", seed, measured="nested-tails")
    found = jobs(key, partial(_asked, jobs, setting, seed), label=f"tails on {setting.run.data}, seed {seed}")
    tails: Tails = {}
    for name, value in found.items():
        tails.setdefault(name.rsplit(" ", 1)[0], []).append(value)
    return tails


def _asked(jobs: Jobs, setting: Setting, seed: int) -> Metrics:
    import leanbayes as lb

    found = lb.importance(network(jobs, setting, "BN3", seed))
    return {f"{name} {j}": float(p) for name, beta in found.items() for j, p in enumerate(beta, 1)}


def described(tails: Tails, layer: str) -> Metrics:
    """One layer of one network: how far it has moved, how far it is from others of as many nodes, and its tails.

    >>> described({"a": [0.5, 0.5], "b": [0.25, 0.75]}, "b")
    {'moved': 0.25, 'between layers': 0.25, 'tail 1': 0.25, 'tail 2': 0.75}
    """
    own = tails[layer]
    others = [beta for name, beta in tails.items() if name != layer and len(beta) == len(own)]
    apart = {"between layers": sum(distance(own, beta) for beta in others) / len(others)} if others else {}
    each = {f"tail {j}": value for j, value in enumerate(own, 1)}
    return {"moved": distance(own, [1 / len(own)] * len(own)), **apart, **each}


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
