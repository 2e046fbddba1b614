"""`evaluate`: runs all stages of an evaluation and returns one result."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import nn

from .. import batches, checks, config, feed
from ..batches import accept
from ..convert import record
from ..errors import EvaluationError
from ..prediction import resolve_task
from ..sampling import ESTIMATORS
from . import arguments, stages
from .arguments import Options
from .configs import Attack, Corruptions
from .corruption_sweep import cells
from .metrics.regression import LEVELS, checked_levels
from .pixels import Pixels
from .progress import Bar
from .result import Evaluation
from .resume import Outcome, Stages, Watched, identity
from .stages import Evaluator
from .summary import assemble, group_digest


def evaluate(
    model: nn.Module,
    loader: Any,
    *,
    task: Any = None,
    samples: int = 32,
    seed: int = 0,
    ood: Mapping[str, Any] | None = None,
    pixels: Pixels | None = None,
    corruptions: Corruptions | bool | None = None,
    reference: Evaluation | None = None,
    attack: Attack | bool | None = None,
    temperature: Any = None,
    selective: Sequence[float] = (0.9, 0.95, 0.99, 0.999),
    replicates: int = 200,
    groups: Any = None,
    resume: str | os.PathLike[str] | None = None,
    mean_only: bool = False,
    estimator: Literal["weight", "local", "flipout", "moments"] = "weight",
    chunk: int | None = None,
    history: Iterable[Mapping[str, Any]] | None = None,
    progress: bool = True,
    name: str | None = None,
    bins: int = 20,
    min_count: int = 6,
    adaptive: bool = False,
    levels: tuple[float, ...] = LEVELS,
    ignore_index: int | None = None,
) -> Evaluation:
    """Evaluate a model, Bayesian or not: accuracy, calibration, out-of-domain detection, robustness and cost.

    loader: inputs and targets: a DataLoader, a Dataset, a tuple of tensors, or any other form of `leanbayes.batches`.
    task: as in `predict`; None for the task that the model was fitted for.
    samples, seed, mean_only, estimator, chunk: as in `predict`, which is called once per batch.
    ood: loaders of out-of-domain data by name (targets are ignored).
    pixels: the normalisation of the inputs, for corruptions and attack; None if they are pixels in [0, 1].
    corruptions: a sweep over corrupted images, `Corruptions()` or True; reference: the Evaluation of another model with
    the same sweep, against which mCE is computed.
    attack: an `Attack`, or True for the one of the Variance Networks paper. Unless its evaluate_samples is
    set, the prediction after each iteration has as many samples as its gradients, and no more than ``samples``.
    temperature: held-out data (not the test data) to fit one temperature on; the model stays as it is.
    selective: accuracies, for each of which the coverage of selective prediction is reported.
    replicates: number of bootstrap replicates for the confidence intervals; 0 for none.
    groups: the group of each datum, (N,) numbers or texts in the order of the data, such as the patient of an image:
    whole groups are then resampled, since data of one group resemble one another. None for those of the data set.
    resume: a file in which every finished stage is saved, so that the same call continues after an interruption and
    returns the same numbers; a file of another model (weights, options, code), other options or other data is refused.
    It is kept at the end, and the same call returns the saved result. Resuming reads the data once to compare them.
    history: the rows of training, for the curves of the report. name: of the model, in tables.
    bins, min_count, adaptive: the binning of ECE and MCE (`reliability`); levels: the nominal levels of the intervals.
    ignore_index: the label to leave out (the border of a segmentation).

    Segmentations may have targets of several annotators, (N, annotators, H, W): bool masks, or integer labels (in the
    shape of the probabilities they may be votes instead). Then the samples are compared with the experts, too:
    generalised energy distance, matched IoU, Dice of the mean, diversity, calibration against the experts' shares; with
    intervals by image, or by group.

    Metrics are computed batch by batch; memory is a few float32 scalars per point.

    >>> import torch
    >>> import leanbayes as lb
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> result = lb.evaluate(nn.Linear(4, 3), (x, y), task="classification", samples=1, progress=False)
    >>> result.metrics.keys() >= {"accuracy", "nll", "ece", "aurc"}, result.interval("accuracy") is not None
    (True, True)
    """
    model = checks.module("model", model, error=EvaluationError)
    samples = checks.samples(samples, error=EvaluationError)
    seed = checks.seed(seed, error=EvaluationError)
    for what, value in (("mean_only", mean_only), ("progress", progress), ("adaptive", adaptive)):
        checks.flag(what, value, error=EvaluationError)
    if chunk is not None:
        chunk = checks.whole_number("chunk", chunk, error=EvaluationError)
    if ignore_index is not None:
        ignore_index = checks.label("ignore_index", ignore_index, error=EvaluationError)
    if name is not None:
        checks.instance("name", name, str, "text", error=EvaluationError)
    if resume is not None:
        resume = checks.path("resume", resume, error=EvaluationError)
    checks.one_of("estimator", estimator, (*ESTIMATORS, "moments"), error=EvaluationError)
    if mean_only and estimator == "moments":
        raise EvaluationError("mean_only: expected False with estimator='moments', received True; choose one of them")
    levels = checked_levels(levels)
    likelihood = resolve_task(model, task)
    groups = arguments.known_groups(loader) if groups is None else groups
    loader = accept(loader, model, name="loader", error=EvaluationError)
    ood = arguments.named_data(ood, model)
    if temperature is not None:
        temperature = accept(temperature, model, name="temperature", error=EvaluationError)
    (first, _), loader = feed.peek(loader)
    requested: dict[str, Any] = {
        "ood": ood,
        "pixels": pixels,
        "corruptions": corruptions,
        "reference": reference,
        "attack": attack,
    }
    requested |= {"temperature": temperature, "selective": selective, "replicates": replicates, "groups": groups}
    wanted = arguments.options(requested, likelihood.task, loader, first, samples, mean_only)
    rows = arguments.history(history)
    ignore = ignore_index if ignore_index is not None else likelihood.ignore_index
    binning = {"bins": bins, "min_count": min_count, "adaptive": adaptive, "ignore_index": ignore}
    options: dict[str, Any] = {"samples": samples, "seed": seed, "chunk": chunk, "mean_only": mean_only}
    if estimator != "weight":  # left out otherwise, so that older files of resume= stay valid
        options["estimator"] = estimator
    with Bar(shown=progress) as bar:
        evaluator = Evaluator(model, likelihood, options, binning, levels, bar)
        if resume is None:
            done = Stages(None, {})
        else:
            same, data = _identity(evaluator, loader, wanted)
            done = Stages(resume, same, data.values())
            loader, wanted = _watched(data, wanted)
        try:
            outcomes = dict(_outcomes(evaluator, loader, first, wanted, done))
        except KeyboardInterrupt as stop:
            if resume is not None:
                stop.add_note(f"{len(done.outcomes)} stages are done; the same call goes on from {os.fspath(resume)}")
            raise
        bar.stage("putting it together")
        return assemble(name or type(model).__name__, evaluator, wanted, outcomes, rows)


def _outcomes(
    evaluator: Evaluator, loader: Any, first: Any, wanted: Options, done: Stages
) -> Iterator[tuple[str, Outcome]]:
    """Yield the name and outcome of every stage; a finished stage is read from its file."""
    bar = evaluator.bar
    works = list(_works(evaluator, loader, first, wanted))
    for stage, amount, _ in works:
        bar.expect(0 if done.done(stage) else amount)
    if wanted.attack is not None:
        behind = stages.SLICE * sum(stage.startswith("attack ") for stage in done.outcomes)
        left = max(min(feed.length(loader) or 0, wanted.attack.limit or sys.maxsize) - behind, 0)
        bar.expect(left * stages.work_of_attack(wanted.attack, evaluator.options["samples"]))
    for stage, _, work in works:
        bar.stage(stage.replace("_", " "))
        yield stage, done.once(stage, work)
    if wanted.attack is not None and wanted.pixels is not None:
        bar.stage("attack")
        for stage, work in stages.attack_stages(evaluator, loader, wanted.attack, wanted.pixels):
            yield stage, done.once(stage, work)


def _works(evaluator: Evaluator, loader: Any, first: Any, wanted: Options) -> Iterator[tuple[str, int | None, Any]]:
    """Yield the name of each stage, its number of data, and its function."""
    count = feed.length(loader)
    yield "cost", 0, lambda: stages.costs(evaluator, first)  # at the start, not after an hour of predictions
    yield "test data", count, lambda: stages.evaluate_test_data(evaluator, loader, scored=bool(wanted.ood))
    for label, other in wanted.ood.items():
        yield f"ood {label}", feed.length(other), lambda a=label, b=other: stages.score_ood_data(evaluator, a, b)
    if wanted.temperature is not None:
        amount = (count or 0) + (feed.length(wanted.temperature) or 0)
        yield "temperature", amount, lambda: stages.evaluate_at_temperature(evaluator, wanted.temperature, loader)
    if wanted.corruptions is not None:
        amount = min(count or 0, wanted.corruptions.limit or sys.maxsize)
        for kind, severity in cells(wanted.corruptions, tuple(batches.first_tensor(first).shape[1:])):
            cell = (evaluator, loader, kind, severity, wanted.corruptions, wanted.pixels)
            yield f"{kind} {severity}", amount, lambda cell=cell: stages.evaluate_corrupted(*cell)


def _identity(evaluator: Evaluator, loader: Any, wanted: Options) -> tuple[dict[str, Any], dict[str, Watched]]:
    """The values that identify the evaluation, and the data by name, compared whenever they are read."""
    data = {"test data": loader} | {f"ood {label}": other for label, other in wanted.ood.items()}
    if wanted.temperature is not None:
        data["temperature"] = wanted.temperature
    for name, source in data.items():
        feed.repeatable(source, name, "resume=")
    configs = {
        field: None if value is None else config.to_dict(value)
        for field, value in (("corruptions", wanted.corruptions), ("attack", wanted.attack), ("pixels", wanted.pixels))
    }
    options = {**evaluator.options, **evaluator.binning, "levels": list(evaluator.levels), **configs}
    if wanted.groups is not None:
        options["groups"] = group_digest(wanted.groups)
    if (saved := record.get(evaluator.model)) is not None and saved.conformal is not None:
        options["conformal"] = config.to_dict(saved.conformal)
    same = identity(evaluator.model, evaluator.likelihood, options, data)
    return same, {name: Watched(source, name) for name, source in data.items()}


def _watched(data: dict[str, Watched], wanted: Options) -> tuple[Watched, Options]:
    """The test data and the options, their data compared whenever they are read."""
    ood = {label: data[f"ood {label}"] for label in wanted.ood}
    return data["test data"], dataclasses.replace(wanted, ood=ood, temperature=data.get("temperature"))
