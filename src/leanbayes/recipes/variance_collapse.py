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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ..methods import Variance
from .base import Jobs, Metrics, Row, recipe
from .variance import accuracy, done, procedures, swapped_accuracy, trained
from .workload import Run, linear_decay

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data import DataSet

PLAIN: dict[str, Any] = {"batch_norm": True, "bias": False}
LENET = Run("mnist", "lenet5", PLAIN)
SMALL = Run("digits", "mlp", {"hidden": (64, 64), **PLAIN}, batch_size=50, epochs=2)


@dataclass(frozen=True)
class Setting:
    """What a preset runs.

    layer: the variance layer. start: runs end to end. features: the run whose layers before `layer` make the features.
    fixed: values of log alpha held on them, for `epochs` epochs. long: the run that is recorded every `every` epochs.
    """

    layer: str = "dense1"
    start: Run | None = None
    features: Run | None = None
    fixed: tuple[float, ...] = ()
    epochs: int = 4
    long: Run | None = None
    every: int = 5
    samples: int = 20
    seeds: int = 1


def _from(log_alpha: float, layer: str = "dense1") -> dict[str, Variance]:
    return {layer: Variance(log_alpha=log_alpha)}


SETTINGS = {
    "smoke": Setting(
        layer="4",
        start=replace(SMALL, methods=_from(12.0, "4")),
        features=SMALL,
        fixed=(2.0, 12.0),
        epochs=2,
        long=replace(SMALL, methods=_from(-5.0, "4")),
        every=1,
        samples=4,
    ),
    "cpu": Setting(
        start=replace(LENET, methods=_from(12.0), epochs=6),
        features=replace(LENET, epochs=1),
        fixed=(2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0),
        seeds=3,
    ),
    "paper": Setting(long=replace(LENET, methods=_from(-5.0), epochs=200), samples=10),
}


@recipe(
    "variance-collapse",
    "deterministic accuracy of variance networks: end to end, by log alpha, and (paper) 200 epochs from -5",
    seeds={name: setting.seeds for name, setting in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for the start at 12, one for every fixed log alpha, one for every recorded epoch of the long run."""
    setting = SETTINGS[preset]
    if setting.start is not None:
        yield _end_to_end(setting, setting.start, jobs)
    if setting.features is not None:
        yield from _fixed(setting, setting.features, jobs)
    if setting.long is not None:
        yield from _long(setting, setting.long, jobs)


def figure(result: Mapping[str, Any]) -> str:
    """The result as an SVG: accuracy against log alpha with its explanation, or the long run over its epochs."""
    from ..report import transition

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


def _end_to_end(setting: Setting, run: Run, jobs: Jobs) -> Row:
    def measure(model: nn.Module, data: DataSet, seed: int) -> Metrics:
        from ..methods.variance.transition import log_alphas

        return {
            "log alpha": log_alphas(model)[setting.layer],
            **procedures(model, data, setting.samples, seed),
            **swapped_accuracy(model, data, setting.samples, seed),
            "BatchNorm at means": _at_means(model, data.train.tensors[0], data),
        }

    found = [
        done(jobs, run, seed, "collapse", partial(measure, seed=seed), samples=setting.samples)
        for seed in range(setting.seeds)
    ]
    return Row(run.data, "end to end", _start(setting, run), found, paper={})


def _fixed(setting: Setting, run: Run, jobs: Jobs) -> Iterator[Row]:
    @cache  # only if a piece is left to do
    def features() -> tuple[nn.Module, DataSet, Tensor, Tensor]:
        model, data, _ = trained(run, 0)
        return model, data, *_features(model, setting.layer, data, run.limit)

    for log_alpha in setting.fixed:
        key = {"measured": "fixed alpha", **run.key(0), "layer": setting.layer, "log_alpha": log_alpha}
        key |= {"head epochs": setting.epochs, "samples": setting.samples}
        work = partial(_one_alpha, setting, run, features, log_alpha)
        found = jobs(key, work, label=f"fixed log alpha {log_alpha:g} on {run.data}")
        yield Row(run.data, "fixed alpha", log_alpha, [found], paper={})


def _long(setting: Setting, run: Run, jobs: Jobs) -> Iterator[Row]:
    key = {**run.key(0), "measured": "long run", "every": setting.every, "samples": setting.samples}
    found = jobs(key, partial(_recorded, setting, run, jobs), label=f"{run.epochs} epochs on {run.data}")
    epochs = sorted({int(name.split()[0]) for name in found})
    for epoch in epochs:
        mine = {n.split(" ", 1)[1]: v for n, v in found.items() if int(n.split()[0]) == epoch}
        yield Row(run.data, f"from log alpha {_start(setting, run):g}", epoch, [mine], paper={})


def _recorded(setting: Setting, run: Run, jobs: Jobs) -> Metrics:
    """All records of the long run, the epoch before the name of each number."""
    from ..data import load
    from ..methods.variance.transition import Transition

    test = load(run.data, val_fraction=0).test.tensors
    watch = Transition(test, every=setting.every, samples=setting.samples)
    kept: dict[str, Any] = {}
    if jobs.folder is not None:
        jobs.folder.mkdir(parents=True, exist_ok=True)
        kept = {"checkpoint": jobs.folder / "long.ckpt", "resume": True, "log": jobs.folder / "long.jsonl"}
    trained(run, 0, callbacks=[watch], **kept)
    found = {}
    for row in watch.rows:
        for name in ("deterministic", "stochastic", "ensemble"):
            found[f"{row['epoch']} {name}"] = row[name]
        found[f"{row['epoch']} log alpha"] = row["log_alpha"][setting.layer]
    return found


def _one_alpha(
    setting: Setting, run: Run, features: Callable[[], tuple[nn.Module, DataSet, Tensor, Tensor]], log_alpha: float
) -> Metrics:
    """The head of the network trained on features at a fixed log alpha, with and without BatchNorm's affine part."""
    import torch
    from torch.utils.data import TensorDataset

    import leanbayes as lb

    from ..methods.variance.transition import accuracies

    network, data, inputs, test_inputs = features()
    labels, test_labels = data.train.tensors[1][: len(inputs)], data.test.tensors[1]
    test = replace(data, parts={"test": TensorDataset(test_inputs, test_labels)})
    found: Metrics = {}
    for affine in (True, False):
        torch.manual_seed(0)
        head = _head(network, setting.layer, affine)
        lb.bayesianize_(head, {setting.layer: Variance(log_alpha=log_alpha)})
        head.get_submodule(setting.layer).posteriors["weight"].log_alpha.requires_grad_(False)  # type: ignore
        decay = partial(linear_decay, epochs=setting.epochs)
        lb.fit(
            head,
            (inputs, labels),
            epochs=setting.epochs,
            batch_size=run.batch_size,
            lr=run.lr,
            scheduler=decay,
            progress=False,
        )
        said = accuracies(head, test.test.tensors, samples=setting.samples)
        if not affine:
            found["no affine part"] = float(said["deterministic"])  # type: ignore[arg-type]
            continue
        found |= {name: value for name, value in said.items() if value is not None}
        found["BatchNorm at means"] = _at_means(head, inputs, test)
        found |= signal_and_offset(head, test_inputs)
    return found


def signal_and_offset(model: nn.Module, inputs: Tensor) -> Metrics:
    """How far the logits at the means differ between images, and how far their averages differ between classes.

    With f_nk the logit of class k for image n, centred over k: signal is the root mean square of f_nk - mean_n f_nk,
    offset that of mean_n f_nk. A network whose offset exceeds its signal says the same class for every image.
    """
    from ..eval_mode import undisturbed
    from ..sampling import using

    with undisturbed(model), using(mean_only=True):
        logits = model(inputs).double()
    logits = logits - logits.mean(1, keepdim=True)
    average = logits.mean(0)
    return {
        "signal": float((logits - average).square().mean().sqrt()),
        "offset": float(average.square().mean().sqrt()),
    }


def _features(model: nn.Module, layer: str, data: DataSet, limit: int | None) -> tuple[Tensor, Tensor]:
    """What the layer reads, for all training and test images."""
    import torch

    from ..eval_mode import undisturbed

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
    from collections import OrderedDict

    from torch import nn

    children = dict(network.named_children())
    names = list(children)[list(children).index(layer) :]
    fresh = OrderedDict((name, copy.deepcopy(children[name])) for name in names)
    for name, module in fresh.items():
        if isinstance(module, nn.BatchNorm1d):
            fresh[name] = module = nn.BatchNorm1d(module.num_features, affine=affine)
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    return nn.Sequential(fresh)


def _at_means(model: nn.Module, inputs: Tensor, data: DataSet) -> float:
    """Deterministic accuracy once BatchNorm's statistics are those of the network at the means."""
    from ..training.recalibrate import recalibrate_

    other = copy.deepcopy(model)
    recalibrate_(other, (inputs,), at="means")
    return accuracy(other, data, mean_only=True)


def _start(setting: Setting, run: Run) -> float:
    return run.methods[setting.layer].log_alpha  # type: ignore[attr-defined]
