"""Why the deterministic procedure collapses (variance networks, figure 1 and tables 1 and 2), in three parts.

*End to end*: LeNet-5 whose first dense layer starts at log alpha 12. The network at the means falls to a random guess,
the ensemble does not, and neither does the ensemble without means (equation 11).

*Fixed alpha*: the same layer on frozen features, log alpha held at 2 to 12. BatchNorm's statistics were collected under
noise, so that at the means the signal shrinks as 1 / sqrt(alpha), while BatchNorm's beta and the error of its running
mean stay: accuracy falls where the differences between classes that are the same for all images (`offset`) exceed those
between images (`signal`). Re-estimating the statistics at the means undoes it; leaving out the affine part delays it.
So the collapse does not show that the means are empty; |mu| is sigma / sqrt(alpha).

*Long*: the paper's own schedule, 200 epochs from log alpha -5, to see whether training alone brings it about. It is the
paper preset, and goes on from a checkpoint wherever it was stopped; its log is beside the checkpoint.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leanbayes as lb

from ...data import DataSet, load
from ...eval_mode import undisturbed
from ...methods.variance.transition import Transition, accuracies, log_alphas
from ..experiment import Cell, Experiment
from ..figures import transition
from ..jobs import Jobs
from ..results import Measured, Metrics
from ..training import Training, linear_decay, reset_
from .measures import accuracy, procedures, swapped_accuracy
from .networks import Line, cell, checkpoint_options

Features = tuple[nn.Module, DataSet, Tensor, Tensor]
"""A network, its data, and what its variance layer is given for training and test images."""
PLAIN: dict[str, Any] = {"batch_norm": True, "bias": False}
LENET = Training("mnist", "lenet5", PLAIN)
SMALL = Training("digits", "mlp", {"hidden": (64, 64), **PLAIN}, batch_size=50, epochs=2)


@dataclass(frozen=True)
class CollapseSetup:
    """What a preset runs.

    layer: the variance layer. start: runs end to end. features: the run whose layers before `layer` make the features.
    fixed: values of log alpha held on them, for `epochs` epochs. long: the run that is recorded every `every` epochs.
    """

    layer: str = "dense1"
    start: Training | None = None
    features: Training | None = None
    fixed: tuple[float, ...] = ()
    epochs: int = 4
    long: Training | None = None
    every: int = 5
    samples: int = 20
    seeds: int = 1


def _from(log_alpha: float, layer: str = "dense1") -> dict[str, lb.Variance]:
    return {layer: lb.Variance(log_alpha=log_alpha)}


SETUPS = {
    "smoke": CollapseSetup(
        layer="4",
        start=replace(SMALL, methods=_from(12.0, "4")),
        features=SMALL,
        fixed=(2.0, 12.0),
        epochs=2,
        long=replace(SMALL, methods=_from(-5.0, "4")),
        every=1,
        samples=4,
    ),
    "cpu": CollapseSetup(
        start=replace(LENET, methods=_from(12.0), epochs=6),
        features=replace(LENET, epochs=1),
        fixed=(2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0),
        seeds=3,
    ),
    "paper": CollapseSetup(long=replace(LENET, methods=_from(-5.0), epochs=200), samples=10),
}


def cells(preset: str) -> Iterator[Cell]:
    """The start at 12, a cell for every fixed log alpha, and the long run, which makes a row for every record."""
    setup = SETUPS[preset]
    if setup.start is not None:
        line = Line(setup.start, seeds=setup.seeds, samples=setup.samples)
        measure = partial(end_to_end, setup.layer)
        yield cell(line, "collapse", "end to end", _start(setup, setup.start), measure)
    if setup.features is not None:
        yield from _fixed(setup, setup.features)
    if (long := setup.long) is not None:
        key = {**long.key(), "measured": "long run", "every": setup.every, "samples": setup.samples}
        name = f"from log alpha {_start(setup, long):g}"
        yield Cell(long.data, name, long.epochs, key, partial(recorded, setup, long))


def _fixed(setup: CollapseSetup, training: Training) -> Iterator[Cell]:
    @cache  # only if a piece is left to do
    def features() -> Features:
        data = training.load()
        model = training.train(0, data)
        return model, data, *_features(model, setup.layer, data, training.limit)

    for log_alpha in setup.fixed:
        key = {"measured": "fixed alpha", **training.key(), "layer": setup.layer, "log_alpha": log_alpha}
        key |= {"head epochs": setup.epochs, "samples": setup.samples}
        measure = partial(one_alpha, setup, training, features, log_alpha)
        yield Cell(training.data, "fixed alpha", log_alpha, key, measure)


def figure(result: Mapping[str, Any]) -> str:
    """The result as an SVG: accuracy against log alpha with its explanation, or the long run over its epochs."""
    found = [(row["method"], row["setting"], _means(row)) for row in result["rows"]]
    fixed = [{**metrics, "log alpha": at} for method, at, metrics in found if method == "fixed alpha"]
    if fixed:
        ends = [metrics for method, _, metrics in found if method == "end to end"]
        return transition.collapse(fixed, ends)
    long = [
        {**metrics, "epoch": at, "log_alpha": {"dense1": metrics["log alpha"]}}
        for method, at, metrics in found
        if method.startswith("from")
    ]
    return transition.procedures(long)


def _means(row: Mapping[str, Any]) -> Metrics:
    return {name: summary["mean"] for name, summary in row["metrics"].items()}


def end_to_end(layer: str, model: nn.Module, data: DataSet, samples: int, seed: int) -> Metrics:
    """The three procedures, the swap, and the means once BatchNorm's statistics are re-estimated there."""
    return {
        "log alpha": log_alphas(model)[layer],
        **procedures(model, data, samples, seed),
        **swapped_accuracy(model, data, samples, seed),
        "BatchNorm at means": _at_means(model, data.train.tensors[0], data),
    }


def recorded(setup: CollapseSetup, training: Training, jobs: Jobs, seed: int) -> Measured:
    """All records of the long run."""
    test = load(training.data, val_fraction=0).test.tensors
    watch = Transition(test, every=setup.every, samples=setup.samples)
    training.train(seed, training.load(), callbacks=[watch], **checkpoint_options(jobs, "long"))
    found = []
    for row in watch.rows:
        accuracies = {name: row[name] for name in ("deterministic", "stochastic", "ensemble")}
        found.append({"setting": row["epoch"], **accuracies, "log alpha": row["log_alpha"][setup.layer]})
    return {"rows": found}


def one_alpha(
    setup: CollapseSetup, training: Training, features: Callable[[], Features], log_alpha: float, jobs: Jobs, seed: int
) -> Metrics:
    """The head of the network trained on features at a fixed log alpha, with and without BatchNorm's affine part."""
    network, data, inputs, test_inputs = features()
    labels, test_labels = data.train.tensors[1][: len(inputs)], data.test.tensors[1]
    test = replace(data, parts={"test": TensorDataset(test_inputs, test_labels)})
    found: Metrics = {}
    for affine in (True, False):
        torch.manual_seed(0)
        head = _head(network, setup.layer, affine)
        lb.bayesianize_(head, {setup.layer: lb.Variance(log_alpha=log_alpha)})
        head.get_submodule(setup.layer).posteriors["weight"].log_alpha.requires_grad_(False)  # type: ignore
        options: dict[str, Any] = {"batch_size": training.batch_size, "lr": training.lr, "progress": False}
        decay = partial(linear_decay, epochs=setup.epochs)
        lb.fit(head, (inputs, labels), epochs=setup.epochs, scheduler=decay, **options)
        each = accuracies(head, test.test.tensors, samples=setup.samples)
        if not affine:
            found["no affine part"] = float(each["deterministic"])  # type: ignore[arg-type]
            continue
        found |= {name: value for name, value in each.items() if value is not None}
        found["BatchNorm at means"] = _at_means(head, inputs, test)
        found |= signal_and_offset(head, test_inputs)
    return found


def signal_and_offset(model: nn.Module, inputs: Tensor) -> Metrics:
    """How far the logits at the means differ between images, and how far their averages differ between classes.

    With f_nk the logit of class k for image n, centred over k: signal is the root mean square of f_nk - mean_n f_nk,
    offset that of mean_n f_nk. A network whose offset exceeds its signal predicts the same class for every image.
    """
    with undisturbed(model), lb.using(mean_only=True):
        logits = model(inputs).double()
    logits = logits - logits.mean(1, keepdim=True)
    average = logits.mean(0)
    return {"signal": float((logits - average).square().mean().sqrt()), "offset": float(average.square().mean().sqrt())}


def _features(model: nn.Module, layer: str, data: DataSet, limit: int | None) -> tuple[Tensor, Tensor]:
    """What the layer reads, for all training and test images."""
    children = dict(model.named_children())
    before = torch.nn.Sequential(*list(children.values())[: list(children).index(layer)])
    with undisturbed(before):
        train, test = (
            torch.cat([before(part) for part in tensors.split(500)])
            for tensors in (data.train.tensors[0][:limit], data.test.tensors[0])
        )
    return train, test


def _head(network: nn.Module, layer: str, affine: bool) -> nn.Module:
    """The layer and all that follows, newly initialised, under the same names."""
    children = dict(network.named_children())
    names = list(children)[list(children).index(layer) :]
    fresh = OrderedDict((name, copy.deepcopy(children[name])) for name in names)
    for name, module in fresh.items():
        if isinstance(module, nn.BatchNorm1d):
            fresh[name] = nn.BatchNorm1d(module.num_features, affine=affine)
    return reset_(nn.Sequential(fresh))


def _at_means(model: nn.Module, inputs: Tensor, data: DataSet) -> float:
    """Deterministic accuracy once BatchNorm's statistics are those of the network at the means."""
    other = copy.deepcopy(model)
    lb.recalibrate_(other, (inputs,), at="means")
    return accuracy(other, data, mean_only=True)


def _start(setup: CollapseSetup, training: Training) -> float:
    return training.methods[setup.layer].log_alpha  # type: ignore[attr-defined]


EXPERIMENT = Experiment("variance-collapse", cells, figure=figure)
