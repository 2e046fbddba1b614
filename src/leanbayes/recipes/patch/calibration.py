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
from ..jobs import Jobs
from ..results import Measured, Metrics, Point
from .networks import (
    BINS,
    PatchSetup,
    chosen,
    digits,
    key,
    probabilities,
    published,
    pyramid,
    resnet,
    scores,
    top,
)

SETUPS: dict[str, tuple[PatchSetup, ...]] = {
    "smoke": (digits(),),
    "cpu": (resnet(), pyramid()),
    "paper": (published(),),
}
COLUMNS = ("overhead", "top-5", "accuracy", "ece", "mce")
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "resnet18": {  # ImageNet, table 4
        "vanilla": (0.0, 0.867, 0.661, 0.0809, 0.142),
        "dropout": (0.0, 0.867, 0.659, 0.0761, 0.140),
        "EMP (BN)": (0.328, 0.868, 0.666, 0.0574, 0.110),
        "EMP (BN+out)": (17.9, 0.872, 0.670, 0.0391, 0.0683),
        "ECMP (BN)": (0.328, 0.868, 0.664, 0.0462, 0.0807),
        "ECMP (BN+out)": (17.9, 0.872, 0.671, 0.0165, 0.0315),
    },
    "pyramidnet_cifar": {  # CIFAR-100, table 6, with the last lines of tables 9 to 11
        "vanilla": (0.0, 0.909, 0.726, 0.216, 0.546),
        "dropout": (0.0, 0.914, 0.720, 0.211, 0.523),
        "EMP (BN+out)": (1.10, 0.920, 0.740, 0.136, 0.289),
        "ECMP (BN+out)": (1.10, 0.919, 0.735, 0.0873, 0.181),
    },
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every network and method, with its calibration curve; the setting is the number of epochs."""
    for setup in SETUPS[preset]:
        for method in setup.methods:
            known = PAPER.get(setup.training.model, {}).get(method)
            paper = dict(zip(COLUMNS, known, strict=True)) if known else {}
            where, measure = key(setup, method, "patch-calibration"), partial(measured, setup, method)
            yield Cell(setup.label, method, setup.training.epochs, where, measure, setup.seeds, paper)


def measured(setup: PatchSetup, method: str, jobs: Jobs, seed: int) -> Measured:
    """Metrics of the test part and the calibration curve; for the vanilla network a row with a temperature, too."""
    data = setup.training.load()
    model, training = chosen(jobs, setup, method, seed, data)
    inputs, targets = data.test.tensors
    probs = probabilities(model, inputs, setup.samples, seed)
    plain, own = (sum(p.numel() for p in m.parameters()) for m in (training.network(data), model))
    found: dict[str, Any] = {
        **scores(probs, targets),
        "top-5": top(probs, targets),
        "overhead": 100 * (own / plain - 1),
    }
    if method == "vanilla":
        found["rows"] = [{"method": "vanilla, temperature", **scaled(model, data)}]
    else:
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
