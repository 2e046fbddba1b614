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
from typing import TYPE_CHECKING

from . import workload
from .base import Jobs, Metrics, Row, recipe
from .nested import SETTINGS, Setting, at_width, network, piece_key, quality, share_of_weights

if TYPE_CHECKING:
    from torch import nn

PAPER: dict[str, dict[str, float]] = {
    "smallest BN3": {"accuracy": 0.835, "ece": 0.10, "AUPR": 0.94, "weight usage": 0.062},
    "SVB": {"accuracy": 0.829, "ece": 0.17, "AUPR": 0.94, "weight usage": 0.057},
    "BN3-MC": {"accuracy": 0.894, "ece": 0.08, "AUPR": 0.97, "weight usage": 0.46, "weight usage, std": 0.27},
    "BN3": {"accuracy": 0.926, "ece": 0.07, "AUPR": 0.97, "weight usage": 1.0},
}


@recipe(
    "limited-parameters",
    "nested posteriors, table 2: the smallest BN3, sparse variational dropout, averages over widths",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a method; the setting says whether its width is fixed or drawn."""
    for setting in SETTINGS[preset]:
        for name, paper in PAPER.items():
            kind = "SVB" if name == "SVB" else "BN3"
            runs = [
                jobs(
                    piece_key(setting, kind, seed, measured="limited-parameters", row=name),
                    partial(measured, jobs, setting, name, kind, seed),
                    label=f"{name} on {setting.run.data}, seed {seed}",
                )
                for seed in range(setting.seeds)
            ]
            shown = paper if setting.run.data == "cifar10" else {}
            yield Row(setting.run.data, name, "sampled" if name == "BN3-MC" else "fixed", runs, paper=shown)


def measured(jobs: Jobs, setting: Setting, name: str, kind: str, seed: int) -> Metrics:
    """Quality, and how many of the weights it takes."""
    import leanbayes as lb

    data, model = workload.load(setting.run), network(jobs, setting, kind, seed)
    if name == "SVB":
        report = lb.prune_(model, by="log_alpha")
        lb.recalibrate_(model, data.train, data=setting.clean)
        return {**quality(setting, model, data, seed), "weight usage": report.kept / report.total}
    if name == "BN3-MC":
        shares = drawn_shares(model)
        usage = {"weight usage": statistics.mean(shares), "weight usage, std": statistics.stdev(shares)}
        return {**quality(setting, at_width(setting, model, data, None), data, seed), **usage}
    width = lb.widths(model)[0 if name == "smallest BN3" else -1]
    found = quality(setting, at_width(setting, model, data, width), data, seed)
    return {**found, "weight usage": share_of_weights(model, width)}


def drawn_shares(model: nn.Module, draws: int = 200) -> list[float]:
    """The share of weights that each of so many draws of the widths uses."""
    import torch

    from ..ordering.unit import units

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
