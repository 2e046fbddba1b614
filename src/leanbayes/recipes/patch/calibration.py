"""Tables 4 and 6 and figures 4, 5 and 7 of ensemble model patching: accuracy and calibration of all methods.

The paper's networks are ResNet-18 on ImageNet (table 4) and PyramidNet (110, alpha 270) on CIFAR-100 (table 6), whose
figures stand in brackets: not comparable in absolute terms with the cpu preset, which trains ResNet-18 at a quarter of
its width, and a small PyramidNet, on a part of CIFAR-10 until the vanilla network is overconfident. What can be
compared is the order. "vanilla, temperature" is not in the paper: one number, fitted on the validation images, that
divides the logits; it costs nothing and is what calibration has to beat.

accuracy, ece, mce: with 20 bins, those with 5 images or fewer left out. overhead: of parameters, in percent. rate: of
dropout, or the perturbation of patches, as chosen on validation images.
The curve "calibration" has the bins of the calibration curve by their upper edges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

import leanbayes as lb

from ...data import DataSet
from ...evaluation.metrics.calibration import reliability
from ..experiment import Cell, Experiment
from ..figures.patch import calibration
from ..paper import printed
from ..results import Measured, Metrics, Point
from .networks import BINS, PatchSetup, PatchTraining, digits, probabilities, published, pyramid, resnet, scores, top

SETUPS: dict[str, tuple[PatchSetup, ...]] = {
    "smoke": (digits(),),
    "cpu": (resnet(), pyramid()),
    "paper": (published(),),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every network and method, with its calibration curve; the setting is the number of epochs."""
    for setup in SETUPS[preset]:
        for method in setup.methods:
            paper = printed("patch-calibration", setup.published, method)
            measure = partial(measured, setup.samples)
            yield setup.cell(method, setup.training.epochs, "patch-calibration", measure, paper=paper)


def measured(samples: int, model: nn.Module, training: PatchTraining, data: DataSet, seed: int) -> Measured:
    """Metrics of the test part and the calibration curve; for the vanilla network a row with a temperature, too."""
    inputs, targets = data.test.tensors
    probs = probabilities(model, inputs, samples, seed)
    plain, own = (sum(p.numel() for p in m.parameters()) for m in (training.network(data), model))
    found: dict[str, Any] = {
        **scores(probs, targets),
        "top-5": top(probs, targets),
        "overhead": 100 * (own / plain - 1),
    }
    if training.method == "vanilla":
        found["rows"] = [{"method": "vanilla, temperature", **scaled(model, data)}]
    elif training.rate:
        found["rate"] = training.rate
    return {**found, "calibration": curve(probs, targets)}


def curve(probs: Tensor, targets: Tensor) -> list[Point]:
    """The bins of the calibration curve that count, by their upper edges."""
    shown = reliability(probs, targets, **BINS)
    return [
        {"edge": float(f"{edge:g}"), "confidence": sure, "accuracy": right, "share": n / len(targets)}
        for edge, n, sure, right in zip(shown.edges[1:], shown.count, shown.confidence, shown.accuracy, strict=True)
        if n >= shown.min_count
    ]


def scaled(model: nn.Module, data: DataSet) -> Metrics:
    """The metrics of a plain network whose logits are divided by the temperature that suits the validation part."""
    other = copy.deepcopy(model)
    temperature = lb.calibrate_(other, data.val.tensors, task="classification", samples=1, progress=False)
    inputs, targets = data.test.tensors
    return {**scores(probabilities(other, inputs, 1, 0), targets), "temperature": temperature}


EXPERIMENT = Experiment("patch-calibration", cells, figure=calibration)
