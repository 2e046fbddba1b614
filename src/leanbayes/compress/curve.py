"""`pruning_curve`: accuracy, NLL and ECE against the share of weights that is removed, by criterion."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from torch import nn

from .. import batches, checks, feed
from ..batches import accept
from ..convert.channels import ChannelGraph, channel_graph
from ..costs import cost
from ..errors import ConfigError, EvaluationError
from ..evaluation.metrics import checks as metric_checks
from ..evaluation.metrics.classification import Classification
from ..files import check_target, write_text
from ..prediction import predict, resolve_task
from ..report.figure import canvas, legend, percent_axis, style, svg
from ..report.table import as_text, table
from ..training.recalibrate import has_statistics, recalibrate_
from .candidates import Criterion, Scope
from .extract import extract
from .kappa import kappa
from .prune import prune_

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
KAPPA = 512
METRICS = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}


@dataclass(frozen=True)
class PruningPoint:
    """by: the criterion. fraction: as asked for. removed: the share of the random weights that is gone.

    weights: how many of them are left. accuracy, nll, ece: of the pruned network. parameters, macs: stored numbers and
    multiply-accumulates of what `extract` makes of it, where whole channels were removed; None otherwise.
    """

    by: str
    fraction: float
    removed: float
    weights: int
    accuracy: float
    nll: float
    ece: float
    parameters: int | None = None
    macs: int | None = None


@dataclass(frozen=True)
class PruningCurve:
    """The points of all criteria. Print it for a table; `plot` draws it.

    channels: whether whole channels were removed.
    """

    points: tuple[PruningPoint, ...]
    channels: bool

    def to_dict(self) -> dict[str, Any]:
        """The curve as JSON."""
        return {"channels": self.channels, "points": [asdict(point) for point in self.points]}

    def to_svg(self) -> str:
        """The three figures above one another, as text: a line for every criterion."""
        with canvas(rows=len(METRICS)) as (figure, axes):
            for ax, (key, name) in zip(axes, METRICS.items(), strict=True):
                for number, by in enumerate(dict.fromkeys(point.by for point in self.points)):
                    line = [(p.removed, vars(p)[key]) for p in self.points if p.by == by]
                    ax.plot(*zip(*line, strict=True), **style(number), label=by)
                ax.set(xlabel="share of weights removed", ylabel=name)
                percent_axis(ax, "both" if key == "accuracy" else "x")
            legend(axes[0])
            what = "channels" if self.channels else "single weights"
            return svg(
                figure, f"Pruning {what}", "; ".join(f"{p.by} {p.removed:.0%}: {p.accuracy:.1%}" for p in self.points)
            )

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure to an .svg file, atomically; returns its path."""
        check_target(path)
        return write_text(path, self.to_svg())

    def __str__(self) -> str:
        cells = [
            [p.by, f"{p.removed:.1%}", f"{p.weights:,}", f"{p.accuracy:.2%}", f"{p.nll:.4f}", f"{p.ece:.4f}"]
            for p in self.points
        ]
        header = ["pruned by", "removed", "weights left", "accuracy", "NLL", "ECE"]
        if not self.channels:
            return as_text(table(header, cells))
        sizes = [[f"{p.parameters:,}", f"{p.macs:,}"] for p in self.points]
        rows = [[*cell, *size] for cell, size in zip(cells, sizes, strict=True)]
        return as_text(table(["channels pruned by", *header[1:], "parameters", "MACs"], rows))


def pruning_curve(
    model: nn.Module,
    loader: Any,
    *,
    by: Criterion | Sequence[Criterion] = ("magnitude", "expected_magnitude", "snr", "log_alpha"),
    fractions: Sequence[float] = FRACTIONS,
    channels: bool = False,
    round_to: int = 1,
    scope: Scope = "global",
    train: Any = None,
    samples: int = 8,
    seed: int = 0,
    mean_only: bool = False,
    task: Any = None,
    example_input: Any = None,
    graph: ChannelGraph | None = None,
) -> PruningCurve:
    """Prune copies of a classifier by each criterion and fraction, and evaluate each of them; the model stays as it is.

    loader: inputs and targets to evaluate on.
    by, fractions, channels, round_to, scope, example_input, graph: as in `prune_`.
    train: training data. On the first 512 kappa is computed, which by="kappa" needs, and on 1,024 the statistics of
        BatchNorm after each cut, where the model has any.
    samples, seed, mean_only, task: as in `predict`.

    >>> import torch
    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> x, y = torch.randn(50, 4), torch.randint(2, (50,))
    >>> curve = pruning_curve(model, (x, y), by="snr", fractions=(0, 0.5), task="classification")
    >>> [(point.by, point.removed, point.weights) for point in curve.points]
    [('snr', 0.0, 48), ('snr', 0.5, 24)]
    """
    checks.module("model", model, error=EvaluationError)
    checks.flag("channels", channels)
    checks.one_of("scope", scope, get_args(Scope))
    if checks.whole_number("round_to", round_to) > 1 and not channels:
        raise ConfigError(f"round_to: expected with channels=True only, received {round_to}")
    known = get_args(Criterion)
    chosen = [by] if isinstance(by, str) else checks.iterable_of("by", by, "criteria", lambda name, value: value)
    chosen = [checks.one_of("by", name, known) for name in chosen]
    shares = checks.iterable_of("fractions", fractions, "fractions", checks.probability, hint="try (0, 0.5, 0.9)")
    if not chosen or not shares:
        raise ConfigError("by, fractions: expected at least one of each, received none")
    loader = accept(loader, model, name="loader", error=EvaluationError)
    if example_input is not None:
        example_input = accept(example_input, name="example_input", arguments=True)
    feed.repeatable(loader, "loader", "every fraction")
    meaning = resolve_task(model, task)
    if meaning.task != "classification":
        raise EvaluationError(f"pruning_curve: expected a classification, received a {meaning.task}")
    if "kappa" in chosen and train is None:
        raise ConfigError("by='kappa': expected train=... to compute it on, received none")
    if channels and graph is None:
        graph = channel_graph(model, example_input)
    (first, _), loader = feed.peek(loader)
    few = (
        [(x, y) for _, x, y in feed.slices(accept(train, model, name="train"), 64, KAPPA)] if "kappa" in chosen else []
    )
    scores = kappa(model, few, task=meaning, progress=False) if few else None
    options: dict[str, Any] = {"samples": samples, "seed": seed, "mean_only": mean_only, "task": meaning}
    points = []
    for name in chosen:
        for share in shares:
            pruned = copy.deepcopy(model)
            own = {"scores": scores} if name == "kappa" else {}
            cut = {"channels": True, "round_to": round_to, "graph": graph} if channels else {}
            report = prune_(pruned, fraction=share, by=name, scope=scope, **cut, **own)  # type: ignore[arg-type]
            if train is not None and has_statistics(pruned):
                recalibrate_(pruned, train, at="means" if mean_only else "samples", data=1024)
            found = _evaluated(pruned, loader, options)
            removed = 1 - report.kept / report.total
            size: tuple[int, ...] = ()
            if channels:
                small = cost(extract(pruned, graph=graph), batches.rows(first, 0, 1))
                size = small.parameters, small.macs
            points.append(PruningPoint(name, share, removed, report.kept, *(found[key] for key in METRICS), *size))  # type: ignore[arg-type]
    return PruningCurve(tuple(points), channels)


def _evaluated(model: nn.Module, loader: Any, options: dict[str, Any]) -> dict[str, float]:
    answers, count = Classification(), 0
    for inputs, targets in feed.labelled(loader):
        answers.update(predict(model, inputs, **options).probs, targets)
        count += len(targets)
    metric_checks.nonempty(count, "loader")
    return answers.compute()
