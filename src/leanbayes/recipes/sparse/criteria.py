"""Figure 2, right, of sparse subspace VI: the removal criteria, and dense VI, by where sigma starts; and which weights
the criteria agree to remove (tables 5 to 7, figure 5).

Criterion 4, SNR(|theta|), is an increasing function of criterion 2, |mu| / sigma: the two remove the same weights, and
their rows are equal. That the paper's removals differ (an IoU of 0.08 in the end) is most likely rounding: its formula
in single precision is flat for small ratios, so that ties decide. "snr-abs, as published" is that formula in that
precision, for the IoU alone. Criterion 6 turns round where lambda |theta| is small: SNR(exp(lambda |theta|)) is then
1 / (lambda std |theta|), whatever the mean is, so that it removes what varies most.

IoU: of the sets of K_t weights a layer that two criteria would remove at an update, over all layers of a run under the
default criterion; looked at after the gradients of the update's step, before the step. removed: the paper's measure.
kept: of the weights that stay. "average IoU" is figure 5: the mean over the ten pairs of the first five criteria.
The paper averages over its own runs of ResNet-18 on CIFAR-100; the cpu preset trains a perceptron on Fashion-MNIST.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ...methods.sparse.config import REMOVALS, SparseSubspace
from ...methods.sparse.criteria import removal_score
from ...methods.sparse.mask_updates import replacement_rate
from ...methods.sparse.posterior import SparseGaussian
from ...posteriors.scale import std_from_rho
from ...report.figure import canvas, legend, svg
from ...report.matrix import matrix
from ...training.callbacks import State
from ..experiment import Cell, Experiment, Results, rows_of_cells
from ..figures.charts import curves
from ..jobs import Jobs
from ..paper import printed
from ..results import Measured, Metrics, Row, points_as_rows
from ..training import trained_network
from .networks import SparseSetup, SparseTraining, digits, mlp, published

SETUPS: dict[str, SparseSetup] = {
    "smoke": digits(),
    "cpu": mlp(seeds=1, without=("dense VI", "snr", "exp", "snr-exp")),
    "paper": published("cifar100"),
}
STDS = (0.001, 0.003, 0.01)
DENSITY = 0.1
PUBLISHED = "snr-abs, as published"
FIRST_FIVE = REMOVALS[:5]
STAGES = ("start", "middle", "end")


def cells(preset: str) -> Iterator[Cell]:
    """The overlaps, then a cell for every criterion and sigma, and for dense VI with and without warm-up.

    The overlaps are first, so that the network they leave behind serves the table too.
    """
    setup = SETUPS[preset]
    watched = setup.subspace(DENSITY, std=STDS[-1])
    key, measure = {**watched.key(), "measured": "overlap of removal criteria"}, partial(overlaps, watched)
    paper: Any = _paper if preset == "paper" else {}
    yield Cell(setup.label, "average IoU", "first five criteria", key, measure, setup.seeds, paper)
    for std in STDS if preset == "paper" else STDS[2:]:
        dense = setup.dense(std)
        found = {"dense VI": dense, "dense VI, no warm-up": replace(dense, warmup=0.0)}
        found = {} if "dense VI" in setup.without else found
        removals = [name for name in REMOVALS if name not in setup.without]
        found |= {name: setup.subspace(DENSITY, removal=name, std=std) for name in removals}
        for name, training in found.items():
            yield setup.cell(training, f"{name}, sigma {std:g}", name, std)


def rows(results: Results) -> list[Row]:
    """The overlaps last, their average at the very end."""
    first, *others = results
    overlap = sorted(rows_of_cells([first]), key=lambda row: row.method == "average IoU")
    return [*rows_of_cells(others), *overlap]


def _paper(method: str, pair: str) -> Mapping[str, float]:
    found = printed("sparse-criteria", pair)
    return {"removed": found[method.removeprefix("IoU at the ")]} if found else {}


def overlaps(training: SparseTraining, jobs: Jobs, seed: int) -> Measured:
    """IoUs of all pairs at three stages, and their average at every update."""
    watch = Overlaps(next(m for m in training.methods.values() if isinstance(m, SparseSubspace)))
    trained_network(jobs, training, seed, training.load(), callbacks=[watch])
    seen = watch.seen
    pairs = [f"{a} & {b}" for a, b in combinations((*REMOVALS, PUBLISHED), 2)]
    found = [
        {"method": f"IoU at the {stage}", "setting": pair, **{k: values[f"{k} {pair}"] for k in ("removed", "kept")}}
        for stage, (_, values) in zip(STAGES, (seen[0], seen[len(seen) // 2], seen[-1]), strict=True)
        for pair in pairs
    ]
    five = [f"removed {a} & {b}" for a, b in combinations(FIRST_FIVE, 2)]
    average = [{"step": step, "removed": sum(values[name] for name in five) / len(five)} for step, values in seen]
    return {"average IoU": average, "rows": found}


class Overlaps:
    """A callback that records at every update what each criterion would remove.

    seen: the step of every update, and the IoU of each pair by name.
    """

    def __init__(self, method: SparseSubspace) -> None:
        self.method = method
        self.seen: list[tuple[int, Metrics]] = []

    def after_backward(self, state: State) -> None:
        """Before the step: what is removed after it is not there any more for callbacks that come later."""
        method, step = self.method, state.step + 1
        if step % (method.interval or 100) or state.total_steps is None:
            return
        rate = replacement_rate(method.schedule, method.replacement, step, method.until * state.total_steps)
        layers = [q for q in state.model.modules() if isinstance(q, SparseGaussian)]
        removed: list[dict[str, Tensor]] = []
        for q in layers:
            if count := int(rate * len(q.index)):
                removed.append(removals(q.loc.detach(), std_from_rho(q.rho).detach(), count, method.lam))
        if removed:
            self.seen.append((step, agreement(removed)))


def removals(mu: Tensor, sigma: Tensor, count: int, lam: float) -> dict[str, Tensor]:
    """Masks (n,) of the ``count`` weights that each criterion would remove.

    >>> import torch
    >>> found = removals(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.01, 0.1, 0.1]), 1, lam=1.0)
    >>> found["mean"].tolist(), found["snr"].tolist()
    ([True, False, False], [False, True, False])
    """
    scores = {name: removal_score(name, mu, sigma, lam) for name in REMOVALS} | {PUBLISHED: as_published(mu, sigma)}
    return {
        name: torch.zeros_like(mu, dtype=torch.bool).index_fill(0, s.topk(count, largest=False).indices, True)
        for name, s in scores.items()
    }


def as_published(mu: Tensor, sigma: Tensor) -> Tensor:
    """Equation 7 as it stands, in single precision: SNR(|theta|), flat and full of ties where |mu| << sigma."""
    mu, sigma = mu.float(), sigma.float()
    r = mu / sigma
    mean = mu * (2 * torch.special.ndtr(r) - 1) + 2 * sigma / math.sqrt(2 * math.pi) * torch.exp(-0.5 * r * r)
    return mean / (sigma * sigma + mu * mu - mean * mean).clamp_min(1e-30).sqrt()


def agreement(removed: list[dict[str, Tensor]]) -> Metrics:
    """Intersection over union of what two criteria remove, and of what they keep, over all layers.

    removed: for every layer the masks by criterion.
    """
    found: Metrics = {}
    for a, b in combinations(removed[0], 2):
        for kind in ("removed", "kept"):
            pairs = [(m[a], m[b]) if kind == "removed" else (~m[a], ~m[b]) for m in removed]
            common = sum(int((x & y).sum()) for x, y in pairs)
            found[f"{kind} {a} & {b}"] = common / max(sum(int((x | y).sum()) for x, y in pairs), 1)
    return found


def figure(result: Mapping[str, Any]) -> str:
    """Figure 2, right, as SVG: accuracy against sigma at the start; below it tables 5 to 7, the overlaps; and figure 5.

    The cell of a criterion with itself is 1, whatever it is.
    """
    rows = [row for row in result["rows"] if row["metrics"]]
    named = [row for row in rows if row["method"] in ("dense VI", "dense VI, no warm-up", *REMOVALS)]
    with canvas(5, width=5.6, height=21.5, ratios=[3.0, 4.4, 4.4, 4.4, 2.4]) as (drawn, (top, *middle, bottom)):
        spoken = [curves(top, named, "accuracy", log=True)]
        top.set_xlabel("sigma at the start")
        legend(top)
        for ax, stage in zip(middle, STAGES, strict=True):
            overlap = {
                row["setting"]: row["metrics"]["removed"]["mean"]
                for row in rows
                if row["method"] == f"IoU at the {stage}"
            }
            names = (*REMOVALS, PUBLISHED)
            values = [[overlap.get(f"{a} & {b}", overlap.get(f"{b} & {a}", 1.0)) for b in names] for a in names]
            shown = [*REMOVALS, "published"]
            spoken.append(matrix(ax, values, shown, f"IoU of what is removed, {stage} of training"))
        spoken.append(curves(bottom, points_as_rows(result["rows"], "average IoU"), "removed"))
        bottom.set(xlabel="step", ylabel="average IoU", ylim=(0, 1.02))
        return svg(drawn, "Removal criteria", "; ".join(spoken))


EXPERIMENT = Experiment("sparse-criteria", cells, rows, figure)
