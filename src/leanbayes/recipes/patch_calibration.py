"""Tables 4 and 6 and figures 4, 5 and 7 of ensemble model patching: accuracy and calibration of all methods.

The paper's networks are ResNet-18 on ImageNet (table 4) and PyramidNet (110, alpha 270) on CIFAR-100 (table 6), whose
figures stand in brackets: not comparable in absolute terms with the cpu preset, which trains ResNet-18 at a quarter of
its width, and a small PyramidNet, on a part of CIFAR-10 until the vanilla network is overconfident. What can be
compared is the order. "vanilla, temperature" is not in the paper: one number, fitted on the validation images, that
divides the logits; it costs nothing and is what calibration has to beat.

accuracy, ece, mce: with 20 bins, those with 5 images or fewer left out. overhead: of parameters, in percent. rate: of
dropout, or the perturbation of patches, as chosen on validation images.
A row "METHOD, bin" is a bin of the calibration curve, its upper edge the setting.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .base import Jobs, Metrics, Row, recipe
from .patch import BINS, Setting, chosen, digits, key, load, probabilities, published, pyramid, resnet, scores
from .workload import network

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data import DataSet

SETTINGS: dict[str, tuple[Setting, ...]] = {
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


@recipe(
    "patch-calibration",
    "ensemble model patching, tables 4 and 6, figures 4, 5, 7: accuracy and calibration beside dropout and vanilla",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every network and method, and one for every bin of its calibration curve."""
    for setting in SETTINGS[preset]:
        known = PAPER.get(setting.run.model, {})
        for method in setting.methods:
            runs = [piece(jobs, setting, method, seed) for seed in range(setting.seeds)]
            own = [{name: value for name, value in run.items() if "|" not in name} for run in runs]
            paper = dict(zip(COLUMNS, known[method], strict=True)) if method in known else {}
            where = f"{setting.run.data}, {setting.run.model}"
            yield Row(where, method, setting.run.epochs, own, paper=paper)
            if method == "vanilla":
                scaled = [_parts(run, "temperature") for run in runs]
                yield Row(where, "vanilla, temperature", setting.run.epochs, scaled, paper={})
            edges = sorted({float(name.split("|")[1]) for run in runs for name in run if name.startswith("bin|")})
            for edge in edges:
                yield Row(
                    where, f"{method}, bin", edge, [found for run in runs if (found := _bin(run, edge))], paper={}
                )


def figure(result: Mapping[str, Any]) -> str:
    """The calibration curves as SVG: figures 4, 5 and 7."""
    from ..report.patch import calibration

    return calibration(result["rows"])


def piece(jobs: Jobs, setting: Setting, method: str, seed: int) -> Metrics:
    """The metrics of one network; "bin|EDGE|NAME" are those of its calibration curve."""
    label = f"{setting.run.model} on {setting.run.data}, {method}, seed {seed}"
    work = partial(_measured, jobs, setting, method, seed)
    return jobs(key(setting, method, seed, "patch-calibration"), work, label=label)


def _measured(jobs: Jobs, setting: Setting, method: str, seed: int) -> Metrics:
    data = load(setting.run)
    model, run = chosen(jobs, setting, method, seed, data)
    plain, own = (sum(p.numel() for p in m.parameters()) for m in (network(run, data), model))
    found = {**quality(model, data, setting.samples, seed), "overhead": 100 * (own / plain - 1)}
    found |= {"rate": run.rate} if setting.candidates(method) else {}
    if method == "vanilla":
        found |= {f"temperature|{name}": value for name, value in _scaled(model, data).items()}
    return found


def quality(model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """Metrics of the test part, and the calibration curve."""
    inputs, targets = data.test.tensors
    probs = probabilities(model, inputs, samples, seed)
    return {**scores(probs, targets), "top-5": top(probs, targets), **curve(probs, targets)}


def top(probs: Tensor, targets: Tensor, count: int = 5) -> float:
    """How often the target is among the `count` most probable classes."""
    best = probs.topk(min(count, probs.shape[1]), 1).indices
    return float((best == targets.unsqueeze(1)).any(1).double().mean())


def curve(probs: Tensor, targets: Tensor) -> Metrics:
    """The bins of the calibration curve that count."""
    from ..evaluation.metrics.calibration import reliability

    found: Metrics = {}
    shown = reliability(probs, targets, **BINS)
    for edge, n, sure, right in zip(shown.edges[1:], shown.count, shown.confidence, shown.accuracy, strict=True):
        if n >= shown.min_count:
            found |= {f"bin|{edge:g}|confidence": sure, f"bin|{edge:g}|accuracy": right}
            found[f"bin|{edge:g}|share"] = n / len(targets)
    return found


def _scaled(model: nn.Module, data: DataSet) -> Metrics:
    """The metrics of a plain network whose logits are divided by the temperature that suits the validation part."""
    from ..evaluation.temperature import calibrate_

    scaled = copy.deepcopy(model)
    temperature = calibrate_(scaled, data.val.tensors, task="classification", samples=1, progress=False)
    inputs, targets = data.test.tensors
    return {**scores(probabilities(scaled, inputs, 1, 0), targets), "temperature": temperature}


def _parts(run: Metrics, kind: str) -> Metrics:
    return {name.split("|")[1]: value for name, value in run.items() if name.startswith(f"{kind}|")}


def _bin(run: Metrics, edge: float) -> Metrics:
    start = f"bin|{edge:g}|"
    return {name.removeprefix(start): value for name, value in run.items() if name.startswith(start)}
