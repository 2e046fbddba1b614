"""Not in the paper: patches on a network that is trained already, by how far from it the components start.

The vanilla network of `patch-calibration` gets patches on BatchNorm and on its output, `Patch` at its defaults but for
the perturbation and the prior (weight decay instead), and is trained for a quarter of its epochs more. "vanilla,
trained on" had these epochs too. The figures are of test images, and the default of `Patch.perturbation` is the one
that did best among them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .base import Jobs, Metrics, Row, recipe
from .patch import Run, Setting, digits, fit_, key, load, network_of, probabilities, published, resnet, scores

if TYPE_CHECKING:
    from torch import nn

METHODS = ("EMP (BN+out)", "ECMP (BN+out)")


@dataclass(frozen=True)
class Sweep:
    """A setting, how many epochs its network is trained on, and the perturbations."""

    setting: Setting
    epochs: int
    perturbations: tuple[float, ...] = (0.03, 0.1, 0.3, 0.5, 1.0)


SETTINGS: dict[str, tuple[Sweep, ...]] = {
    "smoke": (Sweep(digits(), epochs=1, perturbations=(0.1, 0.5)),),
    "cpu": (Sweep(resnet(samples=20, seeds=1), epochs=5),),
    "paper": (Sweep(published(), epochs=100),),
}


@recipe(
    "patch-pretrained",
    "ensemble model patching on a trained network: accuracy and calibration by how far apart components start",
    seeds={name: max(sweep.setting.seeds for sweep in sweeps) for name, sweeps in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """The vanilla network as it was, and trained on, then a row for every method and perturbation."""
    for sweep in SETTINGS[preset]:
        where = f"{sweep.setting.run.data}, {sweep.setting.run.model}"
        found: list[tuple[str, str | float, float, int]] = [
            ("vanilla", "as it was", 0.0, 0),
            ("vanilla", "trained on", 0.0, sweep.epochs),
        ]
        found += [(method, size, size, sweep.epochs) for method in METHODS for size in sweep.perturbations]
        for method, name, size, epochs in found:
            runs = [_piece(jobs, sweep.setting, method, size, epochs, seed) for seed in range(sweep.setting.seeds)]
            yield Row(where, method, name, runs, paper={})


def figure(result: Mapping[str, Any]) -> str:
    """Accuracy, calibration error and loss by perturbation as SVG."""
    from ..report.patch import sweep

    return sweep(result["rows"], "Patches on a trained network", "perturbation")


def patched(vanilla: nn.Module, run: Run, perturbation: float, seed: int) -> nn.Module:
    """A copy of the network with the patches of a run's method; itself, copied, for the vanilla one."""
    import torch

    import leanbayes as lb

    from ..methods import Patch
    from ..methods.patch import norms_and_output

    model = copy.deepcopy(vanilla)
    if run.method != "vanilla":
        torch.manual_seed(seed)
        patch = Patch(run.components, cross=run.method.startswith("ECMP"), prior=None, perturbation=perturbation)
        lb.bayesianize_(model, norms_and_output(model, patch))
    return model


def _piece(jobs: Jobs, setting: Setting, method: str, size: float, epochs: int, seed: int) -> Metrics:
    also = {"perturbation": size, "tuned epochs": epochs}
    work = partial(_measured, jobs, setting, method, size, epochs, seed)
    label = f"{method} on a trained {setting.run.model}, perturbation {size:g}, {epochs} epochs, seed {seed}"
    return jobs(key(setting, method, seed, "patch-pretrained", **also), work, label=label)


def _measured(jobs: Jobs, setting: Setting, method: str, size: float, epochs: int, seed: int) -> Metrics:
    data = load(setting.run)
    run = replace(setting.of(method), epochs=epochs)
    model = patched(network_of(jobs, setting.of("vanilla"), seed, data), run, size, seed)
    if epochs:
        fit_(model, run, seed, data)
    inputs, targets = data.test.tensors
    return scores(probabilities(model, inputs, setting.samples, seed), targets)
