"""The phase-transition criterion (variance networks, section 6.4 and figures 3 to 5).

LeNet-5 whose first dense layer is a variance layer, followed by softplus, since the criterion is a second derivative.
Recorded through training: the three procedures, log alpha, and kappa of every weight of the layer. Measured at the end:
what is left of the ensemble's accuracy once the weights with the lowest kappa are set to zero, or to their means; and
for comparison, once those with the lowest variance are set to zero, which needs no curvature.

The paper preset learns alpha from -5 for 200 epochs, as published, and goes on from a checkpoint wherever it stopped.
That takes hours on a CPU, so the cpu preset *drives* log alpha: it rises by the same amount every step, from 0 to 12,
and all else is learned.

kappa is a sum over the training data, estimated on the first `curvature` of them. kappa_0 is read off the histogram
before the transition, as the paper does: the lowest edge of a bin above which there is at most one weight in ten
thousand. The paper's own, 10^1.5, is counted as well; it depends on how kappa is summed, which the paper does not say.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

import leanbayes as lb

from ...compress.kappa import frozen, kappa
from ...data import DataSet, load
from ...training.callbacks import State
from ..experiment import Cell, Experiment
from ..figures import transition
from ..jobs import Jobs
from ..results import Measured, Point
from ..training import Training
from .measures import accuracy
from .networks import checkpoint_options

LENET = Training("mnist", "lenet5", {"batch_norm": True, "bias": False, "activation": "softplus"})
SHARES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
PROCEDURES = ("deterministic", "stochastic", "ensemble")
REMOVALS = ("zeroed", "mean", "by variance")  # what becomes of the weights with the lowest kappa, or variance


@dataclass(frozen=True)
class CriterionSetup:
    """What a preset runs.

    drive: log alpha at the first and the last step; None learns it. every: epochs between records. curvature: training
    data that kappa is computed on. shares: of the layer's weights that are removed.
    """

    training: Training
    layer: str = "dense1"
    drive: tuple[float, float] | None = None
    every: int = 1
    curvature: int = 1000
    samples: int = 20
    shares: tuple[float, ...] = SHARES


SETUPS = {
    "smoke": CriterionSetup(
        Training(
            "digits",
            "mlp",
            {"hidden": (32, 32), "batch_norm": True, "bias": False, "activation": "gelu"},
            {"4": lb.Variance(log_alpha=0.0)},
            epochs=3,
            batch_size=50,
        ),
        layer="4",
        drive=(0.0, 12.0),
        curvature=100,
        samples=4,
        shares=(0.0, 0.5, 0.95),
    ),
    "cpu": CriterionSetup(replace(LENET, methods={"dense1": lb.Variance(log_alpha=0.0)}, epochs=8), drive=(0.0, 12.0)),
    "paper": CriterionSetup(replace(LENET, methods={"dense1": lb.Variance(log_alpha=-5.0)}, epochs=200), every=5),
}


def cells(preset: str) -> Iterator[Cell]:
    """A single cell, whose curves are the figures."""
    setup = SETUPS[preset]
    training = setup.training
    key = {**training.key(), "drive": setup.drive, "every": setup.every, "curvature": setup.curvature}
    key |= {"measured": "criterion", "samples": setup.samples, "shares": setup.shares}
    yield Cell(training.data, "variance layer", training.epochs, key, partial(measured, setup))


def measured(setup: CriterionSetup, jobs: Jobs, seed: int) -> Measured:
    """The curves: records by epoch, histograms of log10 kappa, and ensembles by the share of weights removed."""
    training = setup.training
    data = load(training.data, val_fraction=0)
    inputs, targets = (t[: training.limit] for t in data.train.tensors)
    some = inputs[: setup.curvature], targets[: setup.curvature]
    watch = lb.Transition(
        data.test.tensors,
        every=setup.every,
        samples=setup.samples,
        kappa=some,
        layers=[setup.layer],
        options={"num_data": len(inputs)},
    )
    drive = [] if setup.drive is None else [Drive(setup.layer, *setup.drive)]
    model = training.train(seed, training.load(), callbacks=[*drive, watch], **checkpoint_options(jobs, "run"))
    scores = kappa(model, some, layers=[setup.layer], num_data=len(inputs), progress=False)
    return {
        "epoch": records(watch.rows, setup.layer),
        "histogram": histogram(watch.rows, f"{setup.layer}.weight"),
        **sparse_ensembles(model, data, scores, setup),
    }


class Drive:
    """A callback that raises log alpha of a layer by the same amount every step; it is no longer learned."""

    def __init__(self, layer: str, first: float, last: float) -> None:
        self.layer, self.first, self.last = layer, first, last

    def before_step(self, state: State) -> None:
        log_alpha: Tensor = state.model.get_submodule(self.layer).posteriors["weight"].log_alpha  # type: ignore
        log_alpha.requires_grad_(False)
        assert state.total_steps is not None
        log_alpha.fill_(self.first + (self.last - self.first) * state.step / max(state.total_steps - 1, 1))


def phases(records: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The records of figure 3: before the deterministic accuracy drops, during the drop, and at the end.

    It has dropped where it is 5 points below its best so far. Without a drop, the first record stands for before.

    >>> records = [{"epoch": n, "deterministic": a} for n, a in enumerate([0.9, 0.98, 0.8, 0.4, 0.1, 0.1])]
    >>> {name: record["epoch"] for name, record in phases(records).items()}
    {'before': 1, 'during': 3, 'after': 5}
    """
    best, drop = 0.0, None
    for number, record in enumerate(records):
        if record["deterministic"] < best - 0.05:
            drop = number
            break
        best = max(best, record["deterministic"])
    found = {"before": records[0 if drop is None else drop - 1]}
    if drop is not None and drop < len(records) - 1:
        between = records[drop:-1]
        half = (best + records[-1]["deterministic"]) / 2
        found["during"] = min(between, key=lambda record: abs(record["deterministic"] - half))
    return {**found, "after": records[-1]}


def kappa_0(histogram: Mapping[str, Any]) -> float:
    """log10 of the lowest edge of a bin above which there is at most one weight in ten thousand.

    >>> kappa_0({"edges": [0.0, 0.5, 1.0, 1.5, 2.0], "counts": [90_000, 9_990, 10, 0]})
    1.0
    """
    counts, edges = histogram["counts"], histogram["edges"]
    above = [sum(counts[number:]) for number in range(len(edges))]
    return float(next(edge for edge, n in zip(edges, above, strict=True) if n <= 1e-4 * above[0]))


def records(watched: Sequence[Mapping[str, Any]], layer: str) -> list[Point]:
    """Figures 1 and 4: accuracies, log alpha, and the weights whose kappa is above kappa_0, by epoch."""
    name = f"{layer}.weight"
    limit = kappa_0(phases(watched)["before"]["kappa"][name])
    found = []
    for record in watched:
        shown = record["kappa"][name]
        above = sum(n for n, low in zip(shown["counts"], shown["edges"], strict=False) if low >= limit)
        point = {"epoch": record["epoch"], **{what: record[what] for what in PROCEDURES}}
        point |= {"log alpha": record["log_alpha"][layer], "above kappa_0": above, "log10 kappa_0": limit}
        found.append({**point, "above 10^1.5": shown["above"]})
    return found


def histogram(watched: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    """Figure 3: the number of weights in every bin of log10 kappa, by its lower edge, before, during and after."""
    chosen = {phase: record["kappa"][name] for phase, record in phases(watched).items()}
    counts = {phase: shown["counts"] for phase, shown in chosen.items()}
    return [
        {"edge": edge, **{phase: each[number] for phase, each in counts.items()}}
        for number, edge in enumerate(next(iter(chosen.values()))["edges"][:-1])
        if any(each[number] for each in counts.values())
    ]


def sparse_ensembles(
    model: nn.Module, data: DataSet, scores: Mapping[str, Tensor], setup: CriterionSetup
) -> dict[str, list[Point]]:
    """Figure 5: ensemble accuracy with the lowest kappas zeroed or at their means, and the compression of the layer."""
    name = f"{setup.layer}.weight"
    values = scores[name].flatten().sort().values
    variances = {name: model.get_submodule(setup.layer).variance("weight").detach()}  # type: ignore[operator]
    found: dict[str, list[Point]] = {kind: [] for kind in REMOVALS}
    for share in setup.shares:
        gone = round(share * len(values))
        zeroed = copy.deepcopy(model)
        lb.prune_(zeroed, by="kappa", scores=scores, fraction=share)
        plain = copy.deepcopy(model)
        lb.prune_(plain, by="kappa", scores=variances, fraction=share)
        for kind, one in zip(REMOVALS, (zeroed, frozen(model, scores, fraction=share), plain), strict=True):
            point: Point = {"share": share, "ensemble": accuracy(one, data, samples=setup.samples, seed=0)}
            point["compression"] = len(values) / (len(values) - gone)
            if kind != "by variance":
                point["log10 kappa"] = float(values[gone].clamp_min(1e-25).log10())
            found[kind].append(point)
    return found


def figure(result: Mapping[str, Any]) -> str:
    """The result as an SVG: figures 3, 4 and 5 from top to bottom."""
    found = {name: [_means(point) for point in points] for name, points in result["rows"][0]["curves"].items()}
    lows = [line["edge"] for line in found["histogram"]]
    # bins without weights were left out
    edges = [min(lows) + 0.5 * number for number in range(round(2 * (max(lows) - min(lows))) + 2)]
    counts = {line["edge"]: line for line in found["histogram"]}
    shown: dict[str, dict[str, Any]] = {
        name: {"edges": edges, "counts": [counts.get(edge, {}).get(name, 0.0) for edge in edges[:-1]]}
        for name in ("before", "during", "after")
        if name in found["histogram"][0]
    }
    above = [(record["epoch"], record["above kappa_0"]) for record in found["epoch"]]
    curves = {name: found[name] for name in REMOVALS[:2]}
    return transition.criterion(found["epoch"], above, shown, found["epoch"][0]["log10 kappa_0"], curves)


def _means(point: Mapping[str, Any]) -> dict[str, float]:
    return {name: value["mean"] if isinstance(value, dict) else value for name, value in point.items()}


EXPERIMENT = Experiment("variance-criterion", cells, figure=figure)
