"""One pass instead of many: `predict(..., estimator="moments")` beside samples, on Fashion-MNIST.

LeNet-5 and a narrow ResNet-18, under a mean-field and under a sparse posterior (10 % of the weights). For each the
predictions of one pass, of 100 samples, of 8 and of the means: NLL, accuracy and ECE on test images, AUROC against
MNIST. "variance, logits": the average variance of the logits by moments, divided by that of 1,000 samples on 16
images; "mean error, logits": how far the means are off, in standard deviations (of samples alone it would be 0.03).
"x plain": processor time as a multiple of a pass of the plain network, 64 images, medians of alternating turns on one
thread. "100 samples, again": with another seed, since whole draws of a network make scores of a set vary together.
No paper prints these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb

from ...data import DataSet, load as load_data
from ...evaluation.metrics import ood
from ...prediction.moments import check_moments
from ...timing import in_turns, times_as_long
from ..experiment import Cell, Experiment
from ..results import Measured
from ..sparse.measures import scores
from ..sparse.networks import SparseSetup, SparseTraining, digits, lenet
from ..training import network_cell

RIVALS: dict[str, dict[str, Any]] = {
    "one pass": {"estimator": "moments"},
    "100 samples": {"samples": 100},
    "100 samples, again": {"samples": 100, "seed": 1},
    "8 samples": {"samples": 8},
    "means": {"mean_only": True},
}


def resnet(**changes: Any) -> SparseSetup:
    """ResNet-18 of a quarter of its width behind a stem of stride 2, trained as LeNet-5 is."""
    options = {"width": 16, "stem_stride": 2}
    setup = lenet()
    training = replace(setup.training, model="resnet18_cifar", options=options)
    return replace(setup, training=training, **{"network": "resnet18, width 16", **changes})


SETUPS: dict[str, tuple[SparseSetup, int, int]] = {
    "smoke": (digits(), 60, 50),
    "lenet": (lenet(), 600, 1000),
    "resnet": (resnet(), 600, 1000),
}
"""By name: the network, how many test images, and how many samples the moments are compared with."""
PRESETS = {"smoke": ("smoke",), "cpu": ("lenet", "resnet"), "paper": ("lenet", "resnet")}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every network and posterior, with a row for every way to predict."""
    for name in PRESETS[preset]:
        setup, images, samples = SETUPS[name]
        for method, training in (("mean field", setup.dense()), ("sparse, 10 %", setup.subspace(0.1))):
            measure = partial(measured, training, images=images, samples=samples)
            also: Any = {"measured": "one pass, processor time", "images": images, "samples": samples}
            yield network_cell(setup.label, training, method, "", measure, **also)


def measured(
    training: SparseTraining, model: nn.Module, data: DataSet, *, images: int, samples: int, seed: int
) -> Measured:
    """A row for every way to predict; accuracy and cost of the moments in that of one pass."""
    inputs, targets = (part[:images] for part in data.test.tensors)
    outside = _outside(training, inputs, images)
    last = check_moments(model, inputs[:16], samples, seed)[-1]
    costs = _costs(training, model, data, inputs[:64])
    rows = []
    for way, options in RIVALS.items():
        options = {**options, "seed": seed + 1000 * options.get("seed", 0)}
        inside, other = (lb.predict(model, x, task="classification", **options) for x in (inputs, outside))
        found: dict[str, Any] = {"setting": way, **scores(inside.probs, targets)}
        found["AUROC, entropy"] = ood.auroc(inside.entropy, other.entropy)
        if way != "means":
            found["AUROC, mutual information"] = ood.auroc(inside.mutual_information, other.mutual_information)
        if way == "one pass":
            found |= {"variance, logits": last.variance_ratio, "mean error, logits": last.mean_error}
        rows.append({**found, **({"x plain": costs[way]} if way in costs else {})})
    rows.append({"setting": "32 samples", "x plain": costs["32 samples"]})
    return {"rows": rows}


def _outside(training: SparseTraining, inputs: Tensor, images: int) -> Tensor:
    if training.data != "fashion-mnist":
        return inputs.flip(-1)
    found: Tensor = load_data("mnist", val_fraction=0).test.tensors[0][:images]
    return found


def _costs(training: SparseTraining, model: nn.Module, data: DataSet, x: Tensor) -> dict[str, float]:
    """Times of a prediction as multiples of a pass of the plain network."""
    plain = training.network(data).eval()

    def once() -> None:
        with torch.no_grad():
            plain(x)

    def way(**options: Any) -> Any:
        return lambda: lb.predict(model, x, task="classification", **options)

    work = {"plain": once, "one pass": way(estimator="moments"), "means": way(mean_only=True)}
    seconds = in_turns(work, turns=15, clock=time.thread_time)
    few = in_turns({"plain": once, "32 samples": way(samples=32)}, turns=3, clock=time.thread_time)
    found = {name: times_as_long(taken, seconds["plain"]) for name, taken in seconds.items() if name != "plain"}
    return {**found, "32 samples": times_as_long(few["32 samples"], few["plain"])}


EXPERIMENT = Experiment("one-pass", cells)
