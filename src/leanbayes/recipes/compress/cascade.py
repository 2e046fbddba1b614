"""A cascade of the widths of one nested network, beside the whole network: accuracy, calibration, arithmetic, time.

One nested network is trained at 25, 50 and 100 % of its channels (a width drawn for every batch), cut to each, and its
BatchNorm statistics re-estimated there. A temperature for each stage and the thresholds of the cascade are found on
images that were held out: the cheapest that lose 0.2 points of accuracy at most, with a confidence of 95 %. The test
images are looked at once. No paper has this table.

The setting is the stage, or the score of the cascade. loss: accuracy below that of the whole network. MACs: on average
over the test images, as a share of the whole network's; MACs, 95 %: of 95 % of the images no more. time, batch N: of
the cascade on test images over the whole network's, in turns; the median over turns. All networks have their BatchNorm
folded into the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb

from ...compress.thresholds import Tuning
from ...data import DataSet
from ...evaluation.metrics import calibration, classification
from ...methods.nested import WEIGHTS
from ...prediction import Predictive
from ...timing import in_turns, times_as_long
from ..experiment import Cell, Experiment
from ..nested.networks import NestedTraining
from ..results import Measured, Metrics
from ..training import network_cell

WIDTHS = (0.25, 0.5, 1.0)
ORDERED = lb.Nested(
    groups=4,
    base_groups=1,
    tails="categorical",
    probabilities=(1.0, 1.0, 0.0, 1.0),
    skip=True,
    weights=replace(WEIGHTS, log_alpha=-3.0),
)


def training(data: str, **changes: Any) -> NestedTraining:
    """A small VGG whose convolutions are nested; its dense layers stay as they are."""
    options = {"options": {"width": 4}, "epochs": 5, "batch_size": 100, "limit": 20_000, **changes}
    return NestedTraining(data, "vgg_small", methods={"conv*": ORDERED, "*": None}, **options)


SETUPS: dict[str, tuple[NestedTraining, ...]] = {
    "smoke": (training("digits", options={"width": 0.5, "hidden": 16}, epochs=2, lr=3e-3, batch_size=50, limit=600),),
    "cpu": (training("fashion-mnist"), training("cifar10", epochs=7)),
}
SETUPS["paper"] = tuple(replace(one, epochs=60, limit=45_000, augment=True) for one in SETUPS["cpu"])
MAX_LOSS = 0.002
SCORES = {"smoke": ("max_probability",), "cpu": ("max_probability",), "paper": ("max_probability", "entropy", "margin")}
HELD_OUT = {"smoke": 200, "cpu": 5000, "paper": 5000}
IMAGES = {"smoke": 64, "cpu": 512, "paper": 512}  # that times are measured on
TURNS = {"smoke": 2, "cpu": 7, "paper": 7}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every network, which makes a row for every stage and every score of the cascade."""
    for one in SETUPS[preset]:
        also: dict[str, Any] = {
            "measured": "cascade",
            "max_loss": MAX_LOSS,
            "scores": SCORES[preset],
            "held_out": HELD_OUT[preset],
        }
        also |= {"images": IMAGES[preset], "turns": TURNS[preset]}
        yield network_cell(one.data, one, "all", "stages", partial(measured, one, preset), **also)


def measured(one: NestedTraining, preset: str, model: nn.Module, data: DataSet, seed: int) -> Measured:
    """The stages by themselves, and the cascade by each score."""
    apart, (inputs, targets) = one.held_out_images(HELD_OUT[preset]), data.test.tensors
    cascade = lb.Cascade(model, widths=WIDTHS, loader=data.train, fold_batchnorm=True)
    for stage in cascade.stages:
        lb.calibrate_(stage, apart, progress=False)
    alone = [lb.predict(stage, inputs) for stage in cascade.stages]
    whole = cascade.count_macs(inputs[:1])[-1]
    rows: list[dict[str, Any]] = []
    for width, pred, macs in zip(WIDTHS, alone, cascade.stage_macs, strict=True):
        found = quality(pred, targets, alone[-1])
        rows.append({"method": f"{100 * width:g} % width", "setting": "alone", **found, "MACs": macs / whole})
    for score in SCORES[preset]:
        cascade.score = score
        report = cascade.tune(apart, max_loss=MAX_LOSS)
        pred = lb.predict(cascade, inputs)
        row: dict[str, Any] = {"method": "cascade", "setting": score, **quality(pred, targets, alone[-1])}
        assert pred.macs is not None
        row |= {"MACs": float(pred.macs.mean()) / whole, "MACs, 95 %": float(pred.macs.quantile(0.95)) / whole}
        rows.append({**row, **shares(pred, report), **times(cascade, inputs[: IMAGES[preset]], TURNS[preset])})
    return {"rows": rows}


def quality(pred: Predictive, targets: Tensor, whole: Predictive) -> Metrics:
    """Accuracy, what is lost of it, and calibration."""
    accuracy = classification.accuracy(pred.probs, targets)
    return {
        "accuracy": accuracy,
        "loss": classification.accuracy(whole.probs, targets) - accuracy,
        "nll": classification.nll(pred.probs, targets),
        "ece": calibration.ece(pred.probs, targets, bins=15, min_count=0),
    }


def shares(pred: Predictive, report: Tuning) -> Metrics:
    """Of the test images, by the stage that answered; the held-out accuracy was tuned for."""
    assert pred.stages is not None
    found = {
        f"answered at {100 * width:g} %": float((pred.stages == k).float().mean()) for k, width in enumerate(WIDTHS)
    }
    return {**found, "held-out loss": report.last_accuracy - report.accuracy}


def times(cascade: lb.Cascade, images: Tensor, turns: int) -> Metrics:
    """How long the cascade takes beside its last stage, one image at a time and in batches of 64."""
    found = {}
    for size in (1, 64):
        batches = images[: 256 if size == 1 else None].split(size)
        seconds = in_turns({"cascade": run(cascade, batches), "whole": run(cascade.stages[-1], batches)}, turns)
        found[f"time, batch {size}"] = times_as_long(seconds["cascade"], seconds["whole"])
    return found


def run(model: nn.Module, batches: Any) -> Callable[[], None]:
    """A pass over all batches."""

    def once() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(batch)

    return once


EXPERIMENT = Experiment("cascade", cells)
