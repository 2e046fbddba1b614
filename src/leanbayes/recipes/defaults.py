"""Every method with its defaults on networks that were trained in a plain loop, beside the same training without Bayes.

No paper's table, but what somebody sees who tries the library on a network of their own: it is trained plainly,
converted by `lb.bayesianize_(model, method())`, trained on by `lb.fit` for five epochs, and asked by `lb.predict` with
16 samples. `fit` is given the validation part, by which it tunes the noise. "plain" is the network trained on in the
same way (of a regression the noise of the targets is tuned too), "as it was" the network before that, and "plain,
temperature" the first with a temperature that the validation part chose. "auto" is what `lb.auto` chose by that part.

accuracy, nll, ece: of test data (rmse, nll and the coverage of 95 % intervals of a regression). converted: the accuracy
before any training under the method. auroc: of the entropy, test images against those of another domain.
"... gain": how much better than "plain" under the same seed; a positive number is good. misses: how many of the
limits are exceeded on average over the seeds (see `LIMITS`); they hold for networks that were trained before. noise:
the factor that `fit` chose. density: the share of the weights that `SparseSubspace` leaves, nearly all of a small
network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

import leanbayes as lb

from ..convert.record import get
from ..evaluation.metrics.calibration import ece
from ..evaluation.metrics.ood import auroc
from ..posteriors.sparse import Sparse
from .defaults_tasks import Task, tasks
from .experiment import Cell, Experiment, Results
from .jobs import Jobs
from .results import Measured, Metrics, Row

SAMPLES = 16
SCALED = "plain, temperature"
METHODS: dict[str, Any] = {
    method.__name__: method
    for method in (
        lb.MeanField,
        lb.VariationalDropout,
        lb.Dropout,
        lb.Variance,
        lb.Ensemble,
        lb.SparseSubspace,
        lb.Patch,
        lb.Nested,
    )
}
LIMITS = {"accuracy": 0.01, "nll": 0.02, "ece": 0.01}
"""By how much a method may be worse than the same training without Bayes, on average over the seeds."""
ACCURACY = {"SparseSubspace": 0.02, "Nested": 0.015}
"""Other limits of accuracy."""
RISES = ("accuracy", "auroc")


def cells(preset: str) -> Iterator[Cell]:
    """The network as it was, trained on plainly, and under every method; then what `auto` chooses."""
    for task in tasks(preset):
        key = {"task": task.name, "preset": preset, "epochs": task.epochs, "samples": SAMPLES}
        names = ["plain", *METHODS] if preset != "smoke" else ["plain", "MeanField", "Nested"]
        if preset != "smoke" and task.pretraining:
            names = ["as it was", *names, "auto", *([SCALED] if task.likelihood == "classification" else [])]
        for name in [name for name in names if name not in task.refused]:
            work = partial(measure, task, name, key)
            seeds = 1 if preset == "smoke" else task.seeds
            yield Cell(task.name, name, "defaults", {**key, "method": name}, work, seeds)


def measure(task: Task, name: str, key: Mapping[str, Any], jobs: Jobs, seed: int) -> Measured:
    """One method on one task under one seed."""
    data = task.data(seed)
    model = jobs.network(
        {"defaults": task.name, "preset": key["preset"], "epochs": task.pretraining, "seed": seed},
        fresh=task.network,
        train=partial(task.pretrained, seed),
        label=f"  training a network for {task.name}, seed {seed}",
    )
    found: Metrics = {}
    torch.manual_seed(1000 + seed)
    options: dict[str, Any] = {"task": task.likelihood, "epochs": task.epochs, "seed": seed, "progress": False}
    if name == "auto":
        model = lb.auto(model, data["train"], data["val"], samples=SAMPLES, **options).model
    elif name != "as it was":
        if name in METHODS:
            lb.bayesianize_(model, METHODS[name]())
            if task.likelihood == "classification":
                found["converted"] = scores(model, task, {"test": data["test"]})["accuracy"]
        history = lb.fit(model, data["train"], val=data["val"], **options)
        if name in METHODS and history.tuning is not None:
            found["noise"] = history.tuning.factor
        if name == "SparseSubspace":
            found["density"] = density(model)
        if name == SCALED:
            lb.calibrate_(model, data["val"], samples=1, progress=False)
    return {**found, **scores(model, task, data)}


def scores(model: nn.Module, task: Task, data: Mapping[str, Any]) -> Metrics:
    """What a model says of the test data, and of those of another domain."""
    known = get(model)
    meaning = None if known is not None and known.likelihood is not None else task.likelihood
    inputs, targets = data["test"]
    said = lb.predict(model, inputs, samples=SAMPLES, task=meaning)
    found: Metrics = {"nll": -float(said.log_prob(targets).double().mean())}
    if task.likelihood == "regression":
        low, high = said.interval(0.95)
        found["rmse"] = float((said.mean - targets).square().mean().sqrt())
        found["coverage"] = float(((targets >= low) & (targets <= high)).double().mean())
        return found
    found["accuracy"] = float((said.probs.argmax(1) == targets).double().mean())
    found["ece"] = ece(said.probs, targets)
    if "other" in data:
        strange = lb.predict(model, data["other"], samples=SAMPLES, task=meaning)
        found["auroc"] = auroc(said.entropy, strange.entropy)
    return found


def density(model: nn.Module) -> float:
    """The share of the weights of sparse layers that are active.

    >>> model = nn.Sequential(nn.Linear(10, 10))
    >>> _ = lb.bayesianize_(model, lb.SparseSubspace(density=0.2))
    >>> density(model)
    0.2
    """
    weights = [m for m in model.modules() if isinstance(m, Sparse)]
    return sum(len(q.index) for q in weights) / max(sum(q.shape.numel() for q in weights), 1)


def rows(results: Results) -> Iterator[Row]:
    """The rows of the cells, with the gains over "plain" of the same task and seed."""
    plain = {cell.dataset: runs for cell, runs in results if cell.method == "plain"}
    for cell, runs in results:
        found = list(runs)
        if cell.method not in ("plain", "as it was") and len(runs) == len(plain.get(cell.dataset, ())):
            found = [{**run, **gains(run, other)} for run, other in zip(runs, plain[cell.dataset], strict=True)]
            if cell.method != SCALED and "from scratch" not in cell.dataset:
                missed = misses(cell.method, found)
                found = [{**run, "misses": float(missed)} for run in found]
        yield from cell.rows(found)


def gains(run: Mapping[str, Any], plain: Mapping[str, Any]) -> Metrics:
    """How much better a run is than the plain one, by metric."""
    shared = [name for name in ("accuracy", "nll", "ece", "auroc", "rmse") if name in run and name in plain]
    return {f"{name} gain": (run[name] - plain[name]) * (1 if name in RISES else -1) for name in shared}


def misses(method: str, runs: list[dict[str, Any]]) -> int:
    """How many of the limits the mean over the runs exceeds.

    >>> misses("Patch", [{"accuracy gain": -0.03, "nll gain": 0.1}, {"accuracy gain": 0.0, "nll gain": 0.1}])
    1
    """
    limits = {**LIMITS, "accuracy": ACCURACY.get(method, LIMITS["accuracy"])}
    means = {name: [run[f"{name} gain"] for run in runs if f"{name} gain" in run] for name in limits}
    return sum(bool(values) and sum(values) / len(values) < -limits[name] for name, values in means.items())


EXPERIMENT = Experiment("defaults", cells, rows)
