"""Tables 9 to 11 and figure 6 of ensemble model patching: accuracy and calibration by the number of samples, 1 to 200.

The networks are those of `patch-calibration`, BatchNorm and output patched. The S samples are the first of 200, so that
a row differs from the one before it by its further samples alone. "EMP" and "ECMP" are balanced, as `predict` lays them
out: over 20 samples every component of every layer is used four times; "ECMP, independent" draws every assignment by
itself, as the paper does. Figures in brackets are the paper's, of ResNet-18 on ImageNet and PyramidNet on CIFAR-100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb

from ...data import DataSet
from ..experiment import Cell, Experiment
from ..figures.patch import sweep
from ..paper import printed
from ..results import Measured
from ..training import ROWS
from .networks import PatchSetup, PatchTraining, digits, published, resnet, scores, top

METHODS = {
    "vanilla": "vanilla",
    "dropout": "dropout",
    "EMP": "EMP (BN+out)",
    "ECMP": "ECMP (BN+out)",
    "ECMP, independent": "ECMP (BN+out)",
}


# a setup, the sample sizes, and the most test images that are looked at
SETUPS: dict[str, tuple[PatchSetup, tuple[int, ...], int]] = {
    "smoke": (digits(), (1, 5, 10), 100),
    "cpu": (resnet(), (1, 20, 100, 200), 2000),
    "paper": (published(), (1, 20, 100, 200), 10_000),
}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every method, which makes a row for every number of samples."""
    setup, every, limit = SETUPS[preset]
    paper = partial(_paper, setup.published)
    for name, method in METHODS.items():
        sizes, independent = every if name != "vanilla" else (1,), name.endswith("independent")
        also = {"sizes": list(sizes), "images": limit, "independent": independent}
        measure = partial(measured, sizes, limit, independent)
        yield setup.cell(method, max(sizes), "patch-samples", measure, name, paper, **also)


def _paper(model: str, method: str, size: int) -> Mapping[str, float]:
    return printed("patch-samples", model, method.split(",")[0], str(size))


def measured(
    sizes: tuple[int, ...], limit: int, independent: bool,
    model: nn.Module, training: PatchTraining, data: DataSet, seed: int,
) -> Measured:  # fmt: skip
    """Metrics by the number of samples."""
    inputs, targets = (t[:limit] for t in data.test.tensors)
    found = prefixes(model, inputs, sizes, seed, balanced=False if independent else None)  # None: the method's default
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
        drawn = lb.predict(model, block, task="classification", **options).samples
        for size in sizes:
            parts[size].append(drawn[: min(size, len(drawn))].mean(0))
    return {size: torch.cat(blocks) for size, blocks in parts.items()}


EXPERIMENT = Experiment("patch-samples", cells, figure=partial(sweep, "What more samples are worth", "samples"))
