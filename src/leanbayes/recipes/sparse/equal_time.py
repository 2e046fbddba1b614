"""Equal time, which no paper compares: what networks of several widths have learned after the same time of training.

Plain networks, dense VI, RigL and sparse subspace VI, the sparse ones of wide networks. Every network is trained for as
many steps as fit into the seconds, from the start and under a one-cycle schedule that ends with them: a point of the
figure is a run of its own. Seconds are of one processor, those of the statistics that `fit` collects at its end
included. A few steps say beforehand what a step costs.

accuracy, nll, ece: of test images, over ten samples. AUROC: of the entropy, against other data. seconds: what training
took. steps: of optimisation. parameters: in use. The cpu preset has ResNet-18 behind a 3x3 stem of stride 2 on
CIFAR-10.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

import leanbayes as lb

from ...costs import cost
from ...data import DataSet, load
from ...evaluation.metrics.ood import auroc
from ...training.schedules import warmup
from ..experiment import Cell, Experiment
from ..figures.charts import lines
from ..jobs import Jobs
from ..results import Metrics
from ..training import shift_and_mirror
from .measures import scores
from .networks import SparseSetup, SparseTraining, digits, resnet

TRIAL = 12  # steps that say what one costs, the first two excepted


@dataclass(frozen=True)
class Batches:
    """So many random batches, each drawn anew; augment: shifts of up to 4 pixels and mirror images."""

    data: TensorDataset
    size: int
    count: int
    seed: int
    augment: bool

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            rows = torch.randint(len(self.data), (self.size,), generator=generator).tolist()
            batch = [self.data[row] for row in rows]
            yield (
                shift_and_mirror(batch)
                if self.augment
                else (torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch]))
            )


@dataclass(frozen=True)
class Setup:
    """A network by width, and for how long it is trained.

    option: of the network, that is its width; shapes: what it is set to at a width, where that is not the number.
    plain, dense, sparse: widths. densities: of sparse networks. ood: other data. strange, tested: how many images of
    them, and of the test part.
    """

    sparse_setup: SparseSetup
    option: str = "width"
    plain: tuple[int, ...] = (8, 16, 32, 64)
    dense: tuple[int, ...] = (16, 32)
    sparse: tuple[int, ...] = (32, 64)
    densities: tuple[float, ...] = (0.05, 0.1)
    seconds: tuple[float, ...] = (60.0, 180.0, 540.0)
    ood: str = "svhn"
    strange: int = 2000
    tested: int = 2000
    shapes: dict[int, Any] = field(default_factory=dict)

    def at(self, width: int) -> SparseSetup:
        """The networks at a width."""
        training = self.sparse_setup.training
        options = {**training.options, self.option: self.shapes.get(width, width)}
        return replace(self.sparse_setup, training=replace(training, options=options))

    def networks(self) -> Iterator[tuple[str, SparseTraining]]:
        """Every network by its name, with how it is trained."""
        for width in self.plain:
            yield f"plain, width {width}", self.at(width).training
        for width in self.dense:
            yield f"dense VI, width {width}", self.at(width).dense()
        for width in self.sparse:
            for density in self.densities:
                yield f"sparse subspace {density:.0%}, width {width}", self.at(width).subspace(density)
                yield f"RigL {density:.0%}, width {width}", self.at(width).rigl(density)


def trained(training: SparseTraining, data: DataSet, steps: int, seed: int) -> nn.Module:
    """A new network after so many steps."""
    torch.manual_seed(seed)
    model = training.network(data)
    training.convert_(model)
    rising = max(round(training.warmup * steps), 1)
    lb.fit(
        model,
        Batches(data.train, training.batch_size, steps, seed, training.augment),
        num_data=len(data.train),
        epochs=1,
        seed=seed,
        optimizer=training.optimizer(model),
        scheduler=partial(one_cycle, steps=steps),
        scheduler_every="step",
        kl_weight=warmup(0, training.kl_weight, steps=rising),
        progress=False,
    )
    return model


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> OneCycleLR:
    """Every group rises to its learning rate over a quarter of the steps and falls to 0."""
    rates = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, rates, total_steps=max(steps, 4) + 1, pct_start=0.25, cycle_momentum=False)


def affordable(training: SparseTraining, data: DataSet, seconds: float) -> int:
    """How many steps fit into so many seconds, less what happens once: the price of a longer and a shorter run."""
    taken = []
    for steps in (2, 2, 2 + TRIAL):  # the first run pays for code and memory that are new
        began = time.process_time()
        trained(training, data, steps, seed=0)
        taken.append(time.process_time() - began)
    _, short, long = taken
    step = max((long - short) / TRIAL, 1e-6)
    return max(int((seconds - max(short - 2 * step, 0)) / step), 4)


def measure(chosen: Setup, training: SparseTraining, seconds: float, jobs: Jobs, seed: int) -> Metrics:
    """What a network is worth after so many seconds."""
    data = training.load()
    steps = affordable(training, data, seconds)
    began = time.process_time()
    model = trained(training, data, steps, seed)
    took = time.process_time() - began
    inputs, targets = (part[: chosen.tested] for part in data.test.tensors)
    answer = partial(lb.predict, model, samples=chosen.sparse_setup.samples, seed=seed, task="classification")
    known = answer(inputs)
    strange = answer(load(chosen.ood, parts="test", normalise=data).test.tensors[0][: chosen.strange])
    return {
        **scores(known.probs, targets),
        "AUROC": auroc(known.entropy, strange.entropy),
        "seconds": took,
        "steps": float(steps),
        "parameters": float(cost(model, inputs[:1]).active_parameters),
    }


def setup(preset: str) -> Setup:
    """What a preset trains."""
    if preset == "smoke":
        small = replace(digits(), samples=2)
        shapes = {16: (16, 16), 64: (64, 64)}
        widths: dict[str, Any] = {"plain": (16,), "dense": (16,), "sparse": (64,), "densities": (0.1,)}
        return Setup(
            small, "hidden", **widths, seconds=(0.2,), ood="not-digits/letters", strange=50, tested=100, shapes=shapes
        )
    short = resnet(seeds=1, samples=10)
    training = replace(short.training, lr=0.1, kl_weight=0.1, augment=True)
    if preset == "paper":
        training = replace(training, limit=None, options={})
        return Setup(replace(short, training=training), plain=(16, 32, 64, 128), seconds=(3600.0, 14_400.0))
    return Setup(replace(short, training=training))


def cells(preset: str) -> Iterator[Cell]:
    """A row for every network and time; the setting is the seconds."""
    chosen = setup(preset)
    key = {
        "strange": chosen.strange,
        "ood": chosen.ood,
        "tested": chosen.tested,
        "samples": chosen.sparse_setup.samples,
    }
    for name, training in chosen.networks():
        for seconds in chosen.seconds:
            own = {**training.key(), **key, "seconds": seconds, "measured": "equal time"}
            work = partial(measure, chosen, training, seconds)
            yield Cell(chosen.sparse_setup.label, name, seconds, own, work, chosen.sparse_setup.seeds)


FIGURE = lines("Equal time", "seconds of training, one thread", ("accuracy", "nll", "AUROC"), log=True)
EXPERIMENT = Experiment("sparse-equal-time", cells, figure=FIGURE)
