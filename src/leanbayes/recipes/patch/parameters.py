"""Tables 1 and 3 of ensemble model patching: what each method costs in parameters, and how many networks it holds.

Counted from plans of the real networks, none of which is trained; they hold no memory (the device "meta"). K = 5 on
BatchNorms and the output; "EMP (BN)" and "ECMP (BN)" are those of table 4. ensemble size, log10: the number of distinct
networks among which one is drawn, counted for the layers there are, where the paper gives orders of growth. Dropout's
is over all convolutions and Linear layers but the first, DropConnect's likewise.

"mean-field" makes every weight and bias of Linear layers and convolutions Gaussian: BatchNorm stays as it is, hence
99.9 % where the paper rounds to 100. MNFG and PBP are cited.

The paper's MLP (100 layers of 100 units) has a base of 1,009,900, which counts no real module: 99 hidden layers of
100 x 101, an output of 100 x 100 without bias, and no affine part of BatchNorm. Its overhead of 119,200 is what can be
checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

import leanbayes as lb

from ... import models
from ...layers.operations import refusal
from ...methods.patch import norm_layer, norms, norms_and_output
from ..experiment import Cell, Experiment
from ..jobs import Jobs
from ..paper import printed
from ..results import Metrics

COMPONENTS = 5
METHODS = (
    "vanilla", "mean-field", "dropout", "DropConnect", "EMP (BN)", "ECMP (BN)", "EMP (BN+out)", "ECMP (BN+out)",
    "explicit ensemble",
)  # fmt: skip


class Network(NamedTuple):
    """A network of `leanbayes.models`, or the paper's MLP of `layers` hidden layers ("stack")."""

    model: str
    options: Mapping[str, Any]


PATCHED = ("EMP (BN+out)", "ECMP (BN+out)")
RESNET = Network("resnet18", {})
PYRAMID = Network("pyramidnet_cifar", {"num_classes": 100})
STACK = Network("stack", {"layers": 100, "width": 100})
SMALL = Network("mlp", {"in_features": 64, "hidden": (32, 32), "out_features": 10, "batch_norm": True})
NETWORKS: dict[str, tuple[Network, ...]] = {
    "smoke": (SMALL,),
    "cpu": (RESNET, PYRAMID, STACK),
    "paper": (RESNET, PYRAMID, STACK),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every network and method; the setting is K."""
    for network in NETWORKS[preset]:
        for method in METHODS:
            key = {"measured": "patch-parameters", "model": network.model, "options": dict(network.options)}
            key |= {"method": method}
            measure = partial(measured, network, method)
            yield Cell(network.model, method, COMPONENTS, key, measure, seeds=None, paper=_paper(network, method))
        for method, count in printed("patch-parameters", network.model).items():
            if method.endswith("(cited)"):
                yield Cell(network.model, method, COMPONENTS, seeds=0, paper={"parameters": count})


def _paper(network: Network, method: str) -> Metrics:
    known = printed("patch-parameters", network.model)
    if method not in known:
        return {}
    count, base = known[method], known["vanilla"]
    exact = isinstance(count, int)  # millions with one decimal tell nothing of what was added
    return {"parameters": count, **({"added": count - base} if exact else {})}


def build(network: Network) -> nn.Module:
    """The network on the device "meta"."""
    with torch.device("meta"):
        if network.model != "stack":
            return models.build(network.model, **network.options)
        return stack(**network.options)


def stack(layers: int, width: int) -> nn.Module:
    """The paper's MLP: `layers` Linear layers, all `width` wide and all but the last followed by BatchNorm and ReLU."""
    hidden = [(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(layers - 1)]
    return nn.Sequential(*(module for three in hidden for module in three), nn.Linear(width, width, bias=False))


def measured(network: Network, method: str, jobs: Jobs, seed: int) -> Metrics:
    """Parameters, those added, the overhead in percent, and the logarithm of the ensemble's size."""
    model = build(network)
    before = after = sum(p.numel() for p in model.parameters())
    if (rules := rules_of(method, model)) is not None:
        after = lb.plan(model, rules).parameters_after
    found: Metrics = {"parameters": after, "added": after - before, "overhead, %": 100 * (after / before - 1)}
    if (size := log10_size(method, model)) is not None:
        found["ensemble size, log10"] = size
    return found


def rules_of(method: str, model: nn.Module) -> Any:
    """What `plan` is given; None for the vanilla network."""
    if method == "vanilla":
        return None
    if method in ("EMP (BN)", "ECMP (BN)", *PATCHED):
        patch = lb.Patch(COMPONENTS, cross=method.startswith("ECMP"))
        return norms_and_output(model, patch) if method in PATCHED else norms(patch)
    found: dict[str, Any] = {
        "mean-field": lb.MeanField(),
        "dropout": lb.Dropout(0.1),
        "DropConnect": lb.DropConnect(0.1),
        "explicit ensemble": lb.Ensemble(COMPONENTS),
    }
    return found[method]


def log10_size(method: str, model: nn.Module) -> float | None:
    """How many networks there are to draw from, as a power of ten; None where they are not finitely many."""
    norms = [module for name, module in model.named_modules() if norm_layer(name, module)]
    weights: list[Any] = [module for module in model.modules() if refusal(module) is None]
    if method in ("EMP (BN)", "ECMP (BN)", *PATCHED):
        layers = [*norms, *([weights[-1]] if method in PATCHED else [])]
        sites = sum(p.numel() for m in layers for p in m.parameters()) if method.startswith("ECMP") else len(layers)
        return sites * math.log10(COMPONENTS)
    if method == "dropout":
        return sum(_inputs(layer) for layer in weights[1:]) * math.log10(2)
    if method == "DropConnect":
        return sum(layer.weight.numel() for layer in weights[1:]) * math.log10(2)
    return {"vanilla": 0.0, "explicit ensemble": math.log10(COMPONENTS)}.get(method)


def _inputs(layer: Any) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


EXPERIMENT = Experiment("patch-parameters", cells)
