"""What density buys, measured: seconds of a whole training step, bytes between steps, and nominal operations beside.

No figure of the paper's, whose code computes densely. Plain network, dense VI and every density take turns, so that a
slow spell of the machine hits all of them; the plain network is dense, deterministic, and has the same optimiser (SGD
with momentum). The stem of a sparse network is a sparse layer of density 1, which the kernels take, too, if it has at
most 128 weights an output. Nominal operations are what papers report; how far the clock follows them is the point.

seconds: the median of the turns. x dense VI, x plain: how many times faster than those. bytes: parameters, indices,
gradients and optimiser state; share of bytes: of dense VI's. nominal share: of dense VI's operations in training.
compiled: the share of sparse layers that compute at the nonzeros.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from .base import Jobs, Metrics, Row, recipe
from .sparse import Run, Setting, convert_, digits, lenet, optimizer, published, resnet
from .timing import in_turns, times_as_long

METRICS = ("seconds", "x dense VI", "x plain", "bytes", "share of bytes", "nominal share", "compiled")


@dataclass(frozen=True)
class Measure:
    """A setting, its densities, the batch and how many turns."""

    setting: Setting
    densities: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    batch: int = 128
    turns: int = 7


SETTINGS: dict[str, tuple[Measure, ...]] = {
    "smoke": (Measure(digits(), (0.5, 0.1), batch=32, turns=2),),
    "cpu": (Measure(lenet()), Measure(resnet())),
    "paper": (Measure(lenet()), Measure(published())),
}


@recipe(
    "sparse-cost",
    "sparse subspace VI: measured time and memory of a training step against density, nominal operations beside",
    seeds=dict.fromkeys(SETTINGS, 1),
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for the plain network, for dense VI, and for every density; the setting is the density."""
    for measure in SETTINGS[preset]:
        run = measure.setting.run
        key = {"measured": "cost", "run": run.key(0), "prior": asdict(measure.setting)["prior"]}
        key |= {"stem": "sparse", "densities": measure.densities, "batch": measure.batch, "turns": measure.turns}
        found = jobs(key, partial(measured, measure), label=f"cost on {run.data}")
        for name, density in (("plain network", 1.0), ("dense VI", 1.0), *(_named(d) for d in measure.densities)):
            each = {metric: found[f"{name} {metric}"] for metric in METRICS if f"{name} {metric}" in found}
            yield Row(run.data, name.partition(",")[0], density, [each], paper={})


def _named(density: float) -> tuple[str, float]:
    return f"sparse subspace, {density}", density


def measured(measure: Measure) -> Metrics:
    """All networks, step by step in turns."""
    from ..costs import cost, training_bytes

    setting = measure.setting
    runs = {"plain network": setting.run, "dense VI": setting.dense()}
    runs |= {name: _through_kernels(setting, density) for name, density in map(_named, measure.densities)}
    made = {name: _stepper(run, measure.batch) for name, run in runs.items()}
    seconds = in_turns({name: step for name, (step, *_) in made.items()}, measure.turns)
    bills = {name: cost(model, x[:1]) for name, (_, model, _, x) in made.items()}
    sizes = {name: training_bytes(model, chosen).total for name, (_, model, chosen, _) in made.items()}
    found: Metrics = {}
    for name, taken in seconds.items():
        sparse = [layer.path for layer in bills[name].layers if layer.path]
        values = {
            "seconds": statistics.median(taken),
            "x dense VI": times_as_long(seconds["dense VI"], taken),
            "x plain": times_as_long(seconds["plain network"], taken),
            "bytes": float(sizes[name]),
            "share of bytes": sizes[name] / sizes["dense VI"],
            "nominal share": bills[name].training_flops() / bills["dense VI"].training_flops(),
        }
        values |= {"compiled": sum(path == "compiled" for path in sparse) / len(sparse)} if sparse else {}
        found |= {f"{name} {metric}": value for metric, value in values.items()}
    return found


def _through_kernels(setting: Setting, density: float) -> Run:
    """Sparse subspace VI whose dense stem is a sparse layer too, as a user in a hurry would have it."""
    run, whole = setting.subspace(density), setting.subspace(1.0).methods["*"]
    return run if setting.stem is None else replace(run, methods={**run.methods, setting.stem: whole})


def _stepper(run: Run, batch: int) -> tuple[Callable[[], None], Any, Any, Any]:
    """A whole training step as a function, with its model, optimiser and inputs."""
    import torch
    import torch.nn.functional as F

    import leanbayes as lb

    from . import workload

    data = workload.load(run)
    torch.manual_seed(0)
    model = workload.network(run, data).train()
    convert_(model, run)
    chosen = optimizer(model, run)
    x, y = (part[:batch] for part in data.train.tensors)

    def step() -> None:
        chosen.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y) + run.kl_weight * lb.kl_sum(model) / len(data.train)
        loss.backward()
        chosen.step()

    return step, model, chosen, x


def figure(result: Mapping[str, Any]) -> str:
    """Speed against dense VI, and the share of its bytes, by density, as SVG."""
    from ..report.sparse import lines

    names = ("sparse subspace",)
    return lines(result, "Cost by density", "density", float, ("x dense VI", "share of bytes"), names, log=True)
