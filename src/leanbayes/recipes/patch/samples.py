"""Tables 9 to 11 and figure 6 of ensemble model patching: what more samples are worth, S = 1, 20, 100 and 200.

The networks are those of `patch-calibration`, BatchNorm and output patched. The S samples are the first of 200, so that
a row differs from the one before it by its further samples alone. "EMP" and "ECMP" are balanced, as `predict` lays them
out: over 20 samples every component of every layer is used four times; "ECMP, independent" draws every assignment by
itself, as the paper does. Figures in brackets are the paper's, of ResNet-18 on ImageNet and PyramidNet on CIFAR-100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb

from ..experiment import Cell, Experiment
from ..figures.patch import sweep
from ..jobs import Jobs
from ..results import Measured
from ..training import ROWS
from .networks import PatchSetup, chosen, digits, key, published, resnet, scores, top

METHODS = {
    "vanilla": "vanilla",
    "dropout": "dropout",
    "EMP": "EMP (BN+out)",
    "ECMP": "ECMP (BN+out)",
    "ECMP, independent": "ECMP (BN+out)",
}


@dataclass(frozen=True)
class SampleSizes:
    """A setup, the sample sizes, and the most test images that are looked at."""

    setup: PatchSetup
    sizes: tuple[int, ...] = (1, 20, 100, 200)
    limit: int = 2000


SETUPS: dict[str, tuple[SampleSizes, ...]] = {
    "smoke": (SampleSizes(digits(), sizes=(1, 5, 10), limit=100),),
    "cpu": (SampleSizes(resnet()),),
    "paper": (SampleSizes(published(), limit=10_000),),
}
# top-5, top-1, ECE and MCE by S: table 9 (EMP), table 10 (ECMP), table 11 (dropout)
PAPER: dict[str, dict[str, dict[int, tuple[float, float, float, float]]]] = {
    "resnet18": {
        "EMP": {
            1: (0.864, 0.656, 0.0703, 0.138), 20: (0.871, 0.669, 0.0408, 0.0700),
            100: (0.872, 0.670, 0.0388, 0.0771), 200: (0.872, 0.670, 0.0391, 0.0683),
        },
        "ECMP": {
            1: (0.856, 0.641, 0.0752, 0.145), 20: (0.871, 0.669, 0.0170, 0.0418),
            100: (0.872, 0.671, 0.0150, 0.0305), 200: (0.872, 0.671, 0.0165, 0.0315),
        },
        "dropout": {
            1: (0.863, 0.653, 0.0899, 0.166), 20: (0.866, 0.659, 0.0764, 0.141),
            100: (0.867, 0.659, 0.0764, 0.142), 200: (0.867, 0.659, 0.0761, 0.140),
        },
        "vanilla": {1: (0.867, 0.661, 0.0809, 0.142)},
    },
    "pyramidnet_cifar": {
        "EMP": {
            1: (0.909, 0.722, 0.212, 0.501), 20: (0.916, 0.732, 0.142, 0.300),
            100: (0.917, 0.742, 0.136, 0.303), 200: (0.920, 0.740, 0.136, 0.289),
        },
        "ECMP": {
            1: (0.893, 0.693, 0.239, 0.530), 20: (0.916, 0.729, 0.0935, 0.214),
            100: (0.918, 0.727, 0.0881, 0.182), 200: (0.919, 0.735, 0.0873, 0.181),
        },
        "dropout": {
            1: (0.910, 0.720, 0.218, 0.542), 20: (0.914, 0.723, 0.210, 0.507),
            100: (0.911, 0.722, 0.210, 0.519), 200: (0.914, 0.720, 0.211, 0.523),
        },
        "vanilla": {1: (0.909, 0.726, 0.216, 0.546)},
    },
}  # fmt: skip
COLUMNS = ("top-5", "accuracy", "ece", "mce")


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every method, which makes a row for every number of samples."""
    for asked in SETUPS[preset]:
        for name, method in METHODS.items():
            sizes = asked.sizes if name != "vanilla" else (1,)
            also = {"sizes": list(sizes), "images": asked.limit, "independent": name.endswith("independent")}
            where = key(asked.setup, method, "patch-samples", **also)
            measure, paper = partial(measured, asked, name, sizes), partial(_paper, asked.setup.training.model)
            yield Cell(asked.setup.label, name, max(sizes), where, measure, asked.setup.seeds, paper)


def _paper(model: str, method: str, size: int) -> Mapping[str, float]:
    known = PAPER.get(model, {}).get(method.split(",")[0], {}).get(size)
    return dict(zip(COLUMNS, known, strict=True)) if known else {}


def measured(asked: SampleSizes, name: str, sizes: tuple[int, ...], jobs: Jobs, seed: int) -> Measured:
    """Metrics by the number of samples."""
    data = asked.setup.training.load()
    model, _ = chosen(jobs, asked.setup, METHODS[name], seed, data)
    inputs, targets = (t[: asked.limit] for t in data.test.tensors)
    balanced = False if name.endswith("independent") else None  # None: as the method says
    found = prefixes(model, inputs, sizes, seed, balanced)
    each = [{"setting": n, **scores(probs, targets), "top-5": top(probs, targets)} for n, probs in found.items()]
    return {"rows": each}


def prefixes(
    model: nn.Module, inputs: Tensor, sizes: tuple[int, ...], seed: int, balanced: bool | None = None
) -> dict[int, Tensor]:
    """Class probabilities averaged over the first samples, for every size, from one prediction."""
    parts: dict[int, list[Tensor]] = {size: [] for size in sizes}
    for block in inputs.split(ROWS):
        options: dict[str, Any] = {"samples": max(sizes), "seed": seed}
        options |= {"keep_samples": True, "balanced": balanced}
        said = lb.predict(model, block, task="classification", **options).samples
        for size in sizes:
            parts[size].append(said[: min(size, len(said))].mean(0))
    return {size: torch.cat(blocks) for size, blocks in parts.items()}


EXPERIMENT = Experiment("patch-samples", cells, figure=partial(sweep, "What more samples are worth", "samples"))
