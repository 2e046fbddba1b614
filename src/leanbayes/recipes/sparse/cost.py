"""What density buys, measured: seconds of a whole training step, bytes between steps, and nominal operations beside.

No figure of the paper's, whose code computes densely. Plain network, dense VI and every density take turns, so that a
slow phase of the machine affects all of them; the plain network is dense, deterministic, and has the same optimiser
(SGD with momentum). The stem of a sparse network is a sparse layer of density 1, which the kernels take, too, if it has
at most 128 weights an output. Nominal operations are what papers report; how far the clock follows them is the point.

seconds: the median of the turns. x dense VI, x plain: how many times faster than those. bytes: parameters, indices,
gradients and optimiser state; share of bytes: of dense VI's. nominal share: of dense VI's operations in training.
compiled: the share of sparse layers that compute at the nonzeros.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import leanbayes as lb

from ...costs import cost, training_bytes
from ...timing import in_turns, times_as_long, training_step
from ..experiment import Cell, Experiment
from ..figures.charts import lines
from ..jobs import Jobs
from ..results import Measured
from .networks import SparseSetup, SparseTraining, digits, lenet, published, resnet


@dataclass(frozen=True)
class Timing:
    """A setup, its densities, the batch and how many turns."""

    setup: SparseSetup
    densities: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    batch: int = 128
    turns: int = 7


SETUPS: dict[str, tuple[Timing, ...]] = {
    "smoke": (Timing(digits(), (0.5, 0.1), batch=32, turns=2),),
    "cpu": (Timing(lenet()), Timing(resnet())),
    "paper": (Timing(lenet()), Timing(published())),
}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every network: a row for the plain one, for dense VI, and for every density, which is the setting."""
    for timing in SETUPS[preset]:
        training = timing.setup.training
        key = {"measured": "cost", "run": training.key(0), "prior": timing.setup.prior, "stem": "sparse"}
        key |= {"densities": timing.densities, "batch": timing.batch, "turns": timing.turns}
        yield Cell(
            training.data, "all", 1.0, key, partial(measured, timing), seeds=None, label=f"cost on {training.data}"
        )


def _name(density: float) -> str:
    return f"sparse subspace, {density}"


def measured(timing: Timing, jobs: Jobs, seed: int) -> Measured:
    """All networks, step by step in turns."""
    setup = timing.setup
    trainings = {"plain network": setup.training, "dense VI": setup.dense()}
    trainings |= {_name(density): _through_kernels(setup, density) for density in timing.densities}
    densities = {"plain network": 1.0, "dense VI": 1.0} | {_name(density): density for density in timing.densities}
    made = {name: _stepper(training, timing.batch) for name, training in trainings.items()}
    seconds = in_turns({name: step for name, (step, *_) in made.items()}, timing.turns)
    bills = {name: cost(model, x[:1]) for name, (_, model, _, x) in made.items()}
    sizes = {name: training_bytes(model, chosen).total for name, (_, model, chosen, _) in made.items()}
    found = []
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
        found.append({"method": name.partition(",")[0], "setting": densities[name], **values})
    return {"rows": found}


def _through_kernels(setup: SparseSetup, density: float) -> SparseTraining:
    """Sparse subspace VI whose dense stem is a sparse layer too, as a user in a hurry would have it."""
    training, whole = setup.subspace(density), setup.subspace(1.0).methods["*"]
    return training if setup.stem is None else replace(training, methods={**training.methods, setup.stem: whole})


def _stepper(training: SparseTraining, batch: int) -> tuple[Callable[[], None], Any, Any, Any]:
    """A whole training step as a function, with its model, optimiser and inputs."""
    data = training.load()
    torch.manual_seed(0)
    model = training.network(data).train()
    training.convert_(model)
    chosen = training.optimizer(model)
    x, y = (part[:batch] for part in data.train.tensors)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + training.kl_weight * lb.kl_sum(model) / len(data.train)

    return training_step(model, chosen, x, y, loss), model, chosen, x


FIGURE = lines("Cost by density", "density", ("x dense VI", "share of bytes"), ("sparse subspace",), log=True)
EXPERIMENT = Experiment("sparse-cost", cells, figure=FIGURE)
