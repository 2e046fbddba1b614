"""`leanbayes compress`: prune a saved network, cut it out, or make a cascade of its widths, and write the result."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..errors import ConfigError
from . import checks

if TYPE_CHECKING:
    from torch import nn

    from .saved import Training

SHOWN = ("accuracy", "nll", "ece", "rmse", "parameters", "macs", "bytes", "latency_one", "latency_batch")


@dataclass(frozen=True)
class Compress:
    """Make a saved network smaller: prune it, cut it to a width, or turn its widths into a cascade.

    Args:
        file: a model that leanbayes train or leanbayes.save wrote.
        out: the .safetensors file to write; evaluate and predict read it like any other.
        prune: the share of the random weights to remove, or of the channels with --channels.
        by: the criterion of pruning; kappa is computed on training data.
        channels: remove whole channels, which makes the layers smaller.
        round_to: every layer keeps a multiple of so many channels.
        widths: of a nested network: one to cut it to, or several for a cascade, cheapest first.
        max_loss: the accuracy that the cascade may lose to its last stage (by default 0.002), on the validation part.
        accuracy: tune the cascade for this accuracy instead.
        macs: tune it for this budget of multiply-adds a datum on average; up to 1 a share of the last stage's.
        milliseconds: tune it so that no datum takes longer.
        stochastic: the smaller network stays Bayesian; otherwise it is the one at the means.
        fold_batchnorm: fold BatchNorm into the layers before it.
        data: what it was trained on, where the file does not say, or package.module:function.
        samples: networks drawn to measure what is random.
        seed: of the draws.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        json: print JSON instead of a table.
    """

    file: Annotated[Path, tyro.conf.Positional]
    out: Path
    prune: float | None = None
    by: Literal["snr", "magnitude", "expected_magnitude", "log_alpha", "kappa"] = "snr"
    channels: bool = False
    round_to: int = 1
    widths: tuple[float, ...] = ()
    max_loss: float | None = None
    accuracy: float | None = None
    macs: float | None = None
    milliseconds: float | None = None
    stochastic: bool = False
    fold_batchnorm: bool = False
    data: str | None = None
    samples: int = 8
    seed: int = 0
    model: str | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Write the smaller network; returns both networks' quality and cost."""
        self._check()

        import leanbayes as lb

        from .. import artifacts
        from .saved import open_model

        model, training = open_model(self.file, self.model)
        parts = _Parts(training, self.data or training.data, self.file)
        small, report = self._compressed(model, parts)
        options: dict[str, Any] = {"samples": self.samples, "seed": self.seed, "replicates": 0, "progress": False}
        found = {
            name: lb.evaluate(one, parts("test"), **options) for name, one in (("before", model), ("after", small))
        }
        sides = {name: {**one.metrics, **one.cost} for name, one in found.items()}
        metadata = {**artifacts.inspect(self.file)["metadata"], "compressed": report}
        lb.save(small, self.out, metadata=metadata)
        sizes = {"before": self.file.stat().st_size, "after": self.out.stat().st_size}
        result = {
            name: {k: side[k] for k in SHOWN if k in side} | {"file": sizes[name]} for name, side in sides.items()
        }
        if not self.json:
            print(_table(result))
            print(f"wrote {self.out}")
        return {**result, "out": str(self.out), **report}

    def _check(self) -> None:
        checks.counts(samples=self.samples, round_to=self.round_to)
        checks.seed(self.seed)
        checks.targets(out=self.out)
        if self.prune is not None:
            checks.fractions(prune=self.prune)
        wishes = [n for n in ("max_loss", "accuracy", "macs", "milliseconds") if vars(self)[n] is not None]
        if len(wishes) > 1:
            raise ConfigError(
                f"--{wishes[1].replace('_', '-')}: expected one wish, received {len(wishes)}; drop the others"
            )
        if wishes and len(self.widths) < 2:
            raise ConfigError(f"--{wishes[0].replace('_', '-')}: expected several --widths beside it, for a cascade")
        if (self.channels or self.round_to > 1) and self.prune is None:
            raise ConfigError("--channels, --round-to: expected --prune SHARE beside them, received none")

    def _compressed(self, model: nn.Module, parts: _Parts) -> tuple[nn.Module, dict[str, Any]]:
        """The smaller network, and what was done."""
        import leanbayes as lb

        from .. import batches, feed
        from ..training.recalibrate import has_statistics

        at: Literal["samples", "means"] = "samples" if self.stochastic else "means"
        report: dict[str, Any] = {}
        pruned = copy.deepcopy(model)
        example = batches.rows(feed.peek(parts("test"))[0][0], 0, 2)
        if self.prune is not None:
            loader = {"loader": parts.few("train", 512)} if self.by == "kappa" else {}
            cut: dict[str, Any] = {"channels": True, "round_to": self.round_to} if self.channels else {}
            cut |= {"example_input": example} if self.channels else {}
            found = lb.prune_(pruned, fraction=self.prune, by=self.by, **cut, **loader)
            report["pruned"] = found.to_dict()
        if len(self.widths) > 1:
            samples = {"samples": self.samples} if self.stochastic else {}
            options: dict[str, Any] = {"loader": parts("train"), "fold_batchnorm": self.fold_batchnorm, **samples}
            cascade = lb.Cascade(pruned, widths=self.widths, **options)
            wish = {n: vars(self)[n] for n in ("max_loss", "accuracy", "macs", "milliseconds")}
            wish = {n: value for n, value in wish.items() if value is not None} or {"max_loss": 0.002}
            tuned = cascade.tune(parts("val"), **wish, seed=self.seed)
            if not self.json:
                print(tuned)
            return cascade, {**report, "tuned": tuned.to_dict()}
        if self.widths:
            lb.set_width_(pruned, self.widths[0])
        if has_statistics(pruned):
            lb.recalibrate_(pruned, parts("train"), at=at, data=5000)
        options = {"stochastic": self.stochastic, "fold_batchnorm": self.fold_batchnorm}
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
        """The first of them."""
        from .. import feed

        return [(inputs, targets) for _, inputs, targets in feed.slices(self(part), 64, count)]


def _table(result: dict[str, dict[str, float]]) -> str:
    from ..report.table import as_text, table

    rows = []
    for name, before in result["before"].items():
        after = result["after"].get(name)
        if after is not None:
            ratio = f"{after / before:.3g}" if before else "-"
            rows.append([name.replace("_", " "), f"{before:.6g}", f"{after:.6g}", ratio])
    return as_text(table(["", "before", "after", "ratio"], rows))
