"""What the tails and the noise of a nested posterior are worth, each by itself.

The paper compares BN3, whose tails are learned and whose weights are random, with FN3, which has neither. Here are all
four combinations, trained alike; then both for three times as many epochs, as they are and with weight decay and
augmented images, which noise may stand in for and which take longer to learn; BN3 whose layers draw widths of their
own, and as the authors' code has it ("legacy"). "BN3-MC" averages over widths drawn from the learned tails, each with
BatchNorm statistics of that width.

"tails moved": the mean total variation between the tail probabilities of a layer and the uniform ones they began with.

A small VGG on 10,000 images of Fashion-MNIST for 12 epochs, two seeds; out-of-domain images are MNIST's. The setting is
the width. No paper has this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import leanbayes as lb

from ...data import DataSet, load
from ...evaluation.metrics import calibration, classification
from ...evaluation.metrics.ood import aupr, auroc
from ...ordering.unit import units
from ..experiment import Cell, Experiment
from ..results import Metrics
from ..training import network_cell, split_parameters
from .networks import NestedSetup, NestedTraining, at_width, digits, fashion, quality
from .tails import described


@dataclass(frozen=True)
class Regularised(NestedTraining):
    """One training run; see `NestedTraining` for the other fields. weight_decay: of Adam, decoupled, of weights."""

    weight_decay: float = 0.0

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Adam, or AdamW whose scales have no decay."""
        if not self.weight_decay:
            return super().optimizer(model)
        others, scales = split_parameters(model, (".log_alpha", ".rho", ".logits"))
        groups: list[dict[str, Any]] = [
            {"params": others, "weight_decay": self.weight_decay},
            {"params": scales, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=self.lr)


def variants(setup: NestedSetup, epochs: int) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """By row: the kind of network, what changes in its nested method, and what changes in its training."""
    learned = {"tails": "learned", "tail_weight": setup.tail_weight}
    longer = {"epochs": 3 * epochs}
    helped = {**longer, "weight_decay": 0.05, "augment": True}
    return {
        "learned tails, noise (BN3)": ("BN3", {}, {}),
        "uniform tails, noise": ("BN3", {"tails": "uniform"}, {}),
        "learned tails, no noise": ("FN3", learned, {}),
        "uniform tails, no noise (FN3)": ("FN3", {}, {}),
        "FN3, longer": ("FN3", {}, longer),
        "FN3, longer, decay and augmentation": ("FN3", {}, helped),
        "BN3, longer": ("BN3", {}, longer),
        "BN3, longer, decay and augmentation": ("BN3", {}, helped),
        "BN3, a draw for each layer": ("BN3", {"share": False}, {}),
        "BN3, legacy": ("BN3", {"legacy": True}, {}),
    }


SETUPS = {
    "smoke": digits(),
    "cpu": fashion(seeds=2, widths=(0.25, 0.5, 1.0)),
    "paper": fashion(widths=(0.25, 0.5, 0.75, 1.0)),
}
SMOKE = ("learned tails, noise (BN3)", "learned tails, no noise")
EPOCHS = {"smoke": 1, "cpu": 12, "paper": 60}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every variant and width."""
    setup = SETUPS[preset]
    for name, (kind, method, training) in variants(setup, EPOCHS[preset]).items():
        if preset == "smoke" and name not in SMOKE:
            continue
        rules = {
            layer: replace(rule, **method) if isinstance(rule, (lb.Nested, lb.NestedDropout)) else rule
            for layer, rule in setup.methods(kind).items()
        }
        base = vars(setup.of(kind))
        one = Regularised(**{**base, "methods": rules, "epochs": EPOCHS[preset], **training})
        also: dict[str, Any] = {"widths": list(setup.widths), "samples": setup.samples, "clean": setup.clean}
        measure = partial(measured, setup, name)
        yield network_cell(
            one.data, one, name, "widths", measure, setup.seeds, measured="ablation", other=setup.other, **also
        )


def measured(setup: NestedSetup, name: str, model: nn.Module, data: DataSet, seed: int) -> dict[str, Any]:
    """Quality at every width, with how far the tails have moved; of BN3 also averaged over widths that are drawn."""
    tails = {layer: [float(p) for p in beta] for layer, beta in lb.importance(model).items()}
    moved = sum(described(tails, layer)["moved"] for layer in tails) / len(tails)
    rows: list[dict[str, Any]] = [
        {"setting": width, "tails moved": moved, **quality(setup, at_width(setup, model, data, width), data, seed)}
        for width in setup.widths
    ]
    if name.endswith("(BN3)"):
        rows.append({"method": "BN3-MC", "setting": "drawn", **over_widths(setup, model, data, seed)})
    return {"rows": rows}


def over_widths(setup: NestedSetup, model: nn.Module, data: DataSet, seed: int) -> Metrics:
    """Quality of the average over widths drawn from the tails of the last ordered layer."""
    ordered, generator = units(model), torch.Generator().manual_seed(seed)
    most = max(unit.nodes for unit in ordered)
    inputs, targets = data.test.tensors
    other = load(setup.other, parts="test", normalise=data).test.tensors[0][: len(inputs)]
    totals: list[Tensor] = [torch.zeros(())] * 2
    for number in range(setup.samples):
        gumbel = -torch.empty(most).exponential_(generator=generator).log()
        widths = {unit.name: unit.drawn(gumbel) / unit.nodes for unit in ordered}
        at = at_width(setup, model, data, widths)
        for k, x in enumerate((inputs, other)):
            totals[k] = totals[k] + lb.predict(at, x, samples=1, seed=seed + number).probs / setup.samples
    inside, outside = totals
    doubt = [torch.special.entr(probs.double()).sum(1) for probs in (inside, outside)]
    return {
        "accuracy": classification.accuracy(inside, targets),
        "nll": classification.nll(inside, targets),
        "ece": calibration.ece(inside, targets, bins=15, min_count=0),
        "AUPR": aupr(*doubt),
        "AUROC": auroc(*doubt),
    }


EXPERIMENT = Experiment("nested-ablation", cells)
