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
from typing import TYPE_CHECKING, Any

from ..methods import Variance
from .base import Jobs, Metrics, Row, recipe
from .variance import accuracy, trained
from .workload import Run

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data import DataSet
    from ..training.callbacks import State

LENET = Run("mnist", "lenet5", {"batch_norm": True, "bias": False, "activation": "softplus"})
SHARES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
PROCEDURES = ("deterministic", "stochastic", "ensemble")


@dataclass(frozen=True)
class Setting:
    """What a preset runs.

    drive: log alpha at the first and the last step; None learns it. every: epochs between records. curvature: training
    data that kappa is computed on. shares: of the layer's weights that are removed.
    """

    run: Run
    layer: str = "dense1"
    drive: tuple[float, float] | None = None
    every: int = 1
    curvature: int = 1000
    samples: int = 20
    shares: tuple[float, ...] = SHARES


SETTINGS = {
    "smoke": Setting(
        Run(
            "digits",
            "mlp",
            {"hidden": (32, 32), "batch_norm": True, "bias": False, "activation": "gelu"},
            {"4": Variance(log_alpha=0.0)},
            epochs=3,
            batch_size=50,
        ),
        layer="4",
        drive=(0.0, 12.0),
        curvature=100,
        samples=4,
        shares=(0.0, 0.5, 0.95),
    ),
    "cpu": Setting(replace(LENET, methods={"dense1": Variance(log_alpha=0.0)}, epochs=8), drive=(0.0, 12.0)),
    "paper": Setting(replace(LENET, methods={"dense1": Variance(log_alpha=-5.0)}, epochs=200), every=5),
}


@recipe(
    "variance-criterion",
    "kappa through the phase transition, and sparse ensembles: zeroed or at the means, by kappa",
    seeds=dict.fromkeys(SETTINGS, 1),
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row a record ("epoch"), a bin of log10 kappa ("histogram"), and a share of weights removed ("zeroed", ...)."""
    setting = SETTINGS[preset]
    key = {**setting.run.key(0), "drive": setting.drive, "every": setting.every, "curvature": setting.curvature}
    key |= {"measured": "criterion", "samples": setting.samples, "shares": setting.shares}
    found = jobs(key, partial(_run, setting, jobs), label=f"{setting.run.epochs} epochs on {setting.run.data}")
    lines: dict[tuple[str, float], Metrics] = {}
    for name, value in found.items():
        kind, where, what = name.split("|")
        lines.setdefault((kind, float(where)), {})[what] = value
    for (kind, at), metrics in lines.items():
        yield Row(setting.run.data, kind, at, [metrics], paper={})


def figure(result: Mapping[str, Any]) -> str:
    """The result as an SVG: figures 3, 4 and 5 from top to bottom."""
    from ..report import transition

    found: dict[str, list[dict[str, float]]] = {}
    for row in result["rows"]:
        means = {name: summary["mean"] for name, summary in row["metrics"].items()}
        found.setdefault(row["method"], []).append({**means, "at": row["setting"]})
    records = [{**record, "epoch": record["at"]} for record in found["epoch"]]
    lows = [line["at"] for line in found["histogram"]]
    # bins without weights were left out
    edges = [min(lows) + 0.5 * number for number in range(round(2 * (max(lows) - min(lows))) + 2)]
    phases: dict[str, dict[str, Any]] = {
        name: {"edges": edges, "counts": [_count(found["histogram"], edge, name) for edge in edges[:-1]]}
        for name in ("before", "during", "after")
        if name in found["histogram"][0]
    }
    counts = [(record["at"], record["above kappa_0"]) for record in records]
    curves = {name: found[name] for name in ("zeroed", "mean")}
    return transition.criterion(records, counts, phases, records[0]["log10 kappa_0"], curves)


def _count(lines: Sequence[Mapping[str, float]], edge: float, phase: str) -> float:
    return next((line[phase] for line in lines if line["at"] == edge), 0.0)


def _run(setting: Setting, jobs: Jobs) -> Metrics:
    """Everything that is measured, named "kind|where|what"."""
    from ..compress.kappa import kappa
    from ..data import load
    from ..methods.variance.transition import Transition

    run = setting.run
    data = load(run.data, val_fraction=0)
    inputs, targets = (t[: run.limit] for t in data.train.tensors)
    some = inputs[: setting.curvature], targets[: setting.curvature]
    watch = Transition(
        data.test.tensors,
        every=setting.every,
        samples=setting.samples,
        kappa=some,
        layers=[setting.layer],
        options={"num_data": len(inputs)},
    )
    drive = [] if setting.drive is None else [Drive(setting.layer, *setting.drive)]
    kept: dict[str, Any] = {}
    if jobs.folder is not None:
        jobs.folder.mkdir(parents=True, exist_ok=True)
        kept = {"checkpoint": jobs.folder / "run.ckpt", "resume": True, "log": jobs.folder / "run.jsonl"}
    model, _, _ = trained(run, 0, callbacks=[*drive, watch], **kept)
    name = f"{setting.layer}.weight"
    scores = kappa(model, some, layers=[setting.layer], num_data=len(inputs), progress=False)
    return {
        **records(watch.rows, setting.layer),
        **histograms(watch.rows, name),
        **_sparse(model, data, scores, setting),
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


def records(watched: Sequence[Mapping[str, Any]], layer: str) -> Metrics:
    """Figures 1 and 4: accuracies, log alpha, and the weights whose kappa is above kappa_0."""
    name = f"{layer}.weight"
    limit = kappa_0(phases(watched)["before"]["kappa"][name])
    found: Metrics = {}
    for record in watched:
        at, shown = f"epoch|{record['epoch']}", record["kappa"][name]
        found |= {f"{at}|{what}": record[what] for what in PROCEDURES}
        found[f"{at}|log alpha"] = record["log_alpha"][layer]
        above = sum(n for n, low in zip(shown["counts"], shown["edges"], strict=False) if low >= limit)
        found |= {f"{at}|above kappa_0": above, f"{at}|log10 kappa_0": limit, f"{at}|above 10^1.5": shown["above"]}
    return found


def histograms(watched: Sequence[Mapping[str, Any]], name: str) -> Metrics:
    """Figure 3: the number of weights in every bin of log10 kappa, by its lower edge, before, during and after."""
    found: Metrics = {}
    chosen = {phase: record["kappa"][name] for phase, record in phases(watched).items()}
    for number, edge in enumerate(next(iter(chosen.values()))["edges"][:-1]):
        if any(shown["counts"][number] for shown in chosen.values()):
            found |= {f"histogram|{edge}|{phase}": shown["counts"][number] for phase, shown in chosen.items()}
    return found


def _sparse(model: nn.Module, data: DataSet, scores: Mapping[str, Tensor], setting: Setting) -> Metrics:
    """Figure 5: ensemble accuracy with the lowest kappas zeroed or at their means, and the compression of the layer."""
    from ..compress.kappa import frozen
    from ..compress.prune import prune_

    name = f"{setting.layer}.weight"
    values = scores[name].flatten().sort().values
    variances = {name: model.get_submodule(setting.layer).variance("weight").detach()}  # type: ignore[operator]
    found: Metrics = {}
    for share in setting.shares:
        gone = round(share * len(values))
        zeroed = copy.deepcopy(model)
        prune_(zeroed, by="kappa", scores=scores, fraction=share)
        plain = copy.deepcopy(model)
        prune_(plain, by="kappa", scores=variances, fraction=share)
        settled = frozen(model, scores, fraction=share)
        for kind, one in (("zeroed", zeroed), ("mean", settled), ("by variance", plain)):
            at = f"{kind}|{share}"
            found[f"{at}|ensemble"] = accuracy(one, data, samples=setting.samples, seed=0)
            found[f"{at}|compression"] = len(values) / (len(values) - gone)
            if kind != "by variance":
                found[f"{at}|log10 kappa"] = float(values[gone].clamp_min(1e-25).log10())
    return found
