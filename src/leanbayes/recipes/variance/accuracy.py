"""Table 1 of variance networks: one sample, the means and an ensemble, of dropout and of variance networks.

The row "variance, dense1" is the main one: LeNet-5 with its first dense layer a variance layer, the network of the
paper's table 2; in its table 1 all four layers are. log alpha starts at -5, as published, and has a learning rate of
its own, so that it passes 5 in a dozen epochs (the paper's 200 take it to 11.7). The CIFAR-10 figures in
brackets are those of the full network after 550 epochs on all images; what the cpu preset trains is far smaller and
sees a fifth of them.

stochastic, deterministic, ensemble: accuracy with one sample, at the means, and averaged over samples.
zero-mean swap: of the ensemble once all means are set to 0 (equation 11). deterministic, recalibrated: at the means
once BatchNorm's statistics have been re-estimated there.
"""

from __future__ import annotations

from torch import nn

import leanbayes as lb

from ...data import DataSet
from ..results import Metrics
from .measures import log_alphas, procedures, recalibrated_accuracy, swapped_accuracy
from .networks import FOUR, Line, lenet, small, table, vgg


def lines(preset: str) -> dict[str, Line]:
    """The rows of a preset by name."""
    variance = lb.Variance(log_alpha=-5.0)
    if preset == "smoke":
        return {
            "dropout": Line(small({"4": lb.Dropout(0.5)}), samples=4),
            "variance": Line(small({"4": variance}), samples=4),
        }
    four = dict.fromkeys(("conv1", "conv2", "dense1", "dense2"), variance)
    last = dict.fromkeys(("conv11", "conv12", "conv13", "dense1"), variance)
    return {
        "dropout": Line(lenet({"dense1": lb.Dropout(0.5)}, preset)),
        "variance, dense1": Line(lenet({"dense1": variance}, preset), seeds=3),
        "variance, all layers": Line(lenet(four, preset, FOUR)),
        "dropout, VGG-like": Line(vgg({}, preset), samples=10),
        "variance, VGG-like": Line(vgg(last, preset, dropout_last=False), samples=10),
    }


def measured(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """The three procedures, and the ensemble without means, and the means with new statistics."""
    found = procedures(model, data, samples, seed)
    alphas = log_alphas(model)
    if not alphas:
        return found
    return {**found, **swapped_accuracy(model, data, samples, seed), **recalibrated_accuracy(model, data), **alphas}


EXPERIMENT = table("variance-accuracy", lines, measured)
