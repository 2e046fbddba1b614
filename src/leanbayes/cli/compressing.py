"""The work of `leanbayes compress`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import leanbayes as lb

from .. import artifacts, batches, feed
from ..errors import ConfigError
from ..report.table import as_text, table
from ..training.recalibrate import has_statistics
from .compress import Compress
from .saved import Training, open_model

SHOWN = ("accuracy", "nll", "ece", "rmse", "parameters", "macs", "bytes", "latency_one", "latency_batch")


def compressed(wanted: Compress) -> dict[str, Any]:
    """Write the smaller network; return the quality and cost of both, and a report of each step."""
    model, training = open_model(wanted.file, wanted.model)
    parts = _Parts(training, wanted.data or training.data, wanted.file)
    small, report = _smaller(wanted, model, parts)
    options: dict[str, Any] = {"samples": wanted.samples, "seed": wanted.seed, "replicates": 0, "progress": False}
    sides = {}
    for name, one in (("before", model), ("after", small)):
        found = lb.evaluate(one, parts("test"), **options)
        sides[name] = {key: value for key, value in (found.metrics | found.cost).items() if key in SHOWN}
    metadata = {**artifacts.inspect(wanted.file)["metadata"], "compressed": report}
    lb.save(small, wanted.out, metadata=metadata)
    sides["before"]["file"], sides["after"]["file"] = (path.stat().st_size for path in (wanted.file, wanted.out))
    if not wanted.json:
        print(f"{_table(sides)}\nwrote {wanted.out}")
    return {**sides, "out": str(wanted.out), **report}


def _smaller(wanted: Compress, model: nn.Module, parts: _Parts) -> tuple[nn.Module, dict[str, Any]]:
    """The smaller network, and a report of each step."""
    report: dict[str, Any] = {}
    pruned = copy.deepcopy(model)
    example = batches.rows(feed.peek(parts("test"))[0][0], 0, 2)
    if wanted.prune is not None:
        options: dict[str, Any] = {"loader": parts.few("train", 512)} if wanted.by == "kappa" else {}
        if wanted.channels:
            options |= {"channels": True, "round_to": wanted.round_to, "example_input": example}
        left = lb.prune_(pruned, fraction=wanted.prune, by=wanted.by, **options)
        report["pruned"] = left.to_dict()
        if not wanted.json:
            print(left)
    if len(wanted.widths) > 1:
        options = {"loader": parts("train"), "fold_batchnorm": wanted.fold_batchnorm}
        samples = wanted.samples if wanted.stochastic else None
        cascade = lb.Cascade(pruned, widths=wanted.widths, samples=samples, **options)
        wishes: dict[str, Any] = wanted.wishes() or {"max_loss": 0.002}
        tuned = cascade.tune(parts("val"), **wishes, cheapest=wanted.cheapest, seed=wanted.seed)
        if not wanted.json:
            print(tuned)
        return cascade, {**report, "tuned": tuned.to_dict()}
    if wanted.widths:
        lb.set_width_(pruned, wanted.widths[0])
    if has_statistics(pruned):
        lb.recalibrate_(pruned, parts("train"), at="samples" if wanted.stochastic else "means", data=5000)
    options = {"stochastic": wanted.stochastic, "fold_batchnorm": wanted.fold_batchnorm}
    return lb.extract(pruned, **options, example_input=example), report


@dataclass(frozen=True)
class _Parts:
    """The parts of the data that a model was trained on, scaled as they were then."""

    training: Training
    name: str | None
    file: Path

    def __call__(self, part: str) -> Any:
        if self.name is None:
            raise ConfigError(f"{self.file} does not say what it was trained on; add --data NAME")
        found = self.training.load(self.name, part=part).parts
        if part not in found:
            raise ConfigError(f"--data: expected data with a part {part!r}, {self.name} has {', '.join(found)}")
        return found[part]

    def few(self, part: str, count: int) -> Any:
        """The first ``count`` data of a part."""
        return [(inputs, targets) for _, inputs, targets in feed.slices(self(part), 64, count)]


def _table(sides: dict[str, dict[str, float]]) -> str:
    rows = []
    for name, before in sides["before"].items():
        if (after := sides["after"].get(name)) is not None:
            ratio = f"{after / before:.3g}" if before else "-"
            rows.append([name.replace("_", " "), f"{before:.6g}", f"{after:.6g}", ratio])
    return as_text(table(["", "before", "after", "ratio"], rows))
