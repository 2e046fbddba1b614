"""Amounts of noise, tried one after the other on held-out data; each leaves the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches
from ..errors import DataError
from ..layers.contract import BayesianLayer
from ..likelihoods import Likelihood, Regression
from ..posteriors.base import Posterior
from ..report.table import as_text, table
from .recalibrate import kept_statistics

STEP, MOST = 2.0, 4
"""Factors are tried by steps of this size, so many in each direction."""
MARGIN = 0.005
"""Differences of the NLL not worth a change: data that are all classified well prefer no noise by so little."""
STATISTICS = 2_000
"""How many data BatchNorm's statistics are collected from for each factor that is tried."""
_STDS = torch.logspace(-1, 1, 101, dtype=torch.float64)  # relative to the learned noise of a regression


@dataclass(frozen=True)
class Tried:
    """One amount of noise: a factor on what there was, and what the model said of the held-out data with it.

    std: the noise of the targets, of a regression that learns it, at its best for this factor; None otherwise.
    nll: the mean negative log-likelihood of a datum. gain: by how much it is below that of the model as it was, and
    error the standard error of that, datum by datum.
    """

    factor: float
    std: float | None
    nll: float
    gain: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """What `tune_noise_` chose, and all that it tried, the model as it was first. Printing it gives the table."""

    factor: float
    std: float | None
    tried: tuple[Tried, ...]

    @property
    def chosen(self) -> Tried:
        """What was chosen of what was tried."""
        return next(one for one in self.tried if (one.factor, one.std) == (self.factor, self.std))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; None where a number is not finite."""
        found = asdict(self)
        found["tried"] = [
            {k: v if v is None or math.isfinite(v) else None for k, v in t.items()} for t in found["tried"]
        ]
        return found

    def summary(self) -> str:
        """One line for the progress of a training."""
        std = "" if self.std is None else f", noise of the targets {self.std:.4g}"
        return f"noise x {self.factor:g}{std}: val_nll {self.tried[0].nll:.4g} -> {self.chosen.nll:.4g}"

    def __str__(self) -> str:
        header = ["noise", "noise of targets", "val NLL", "better by", ""]
        rows = [
            [
                f"x {one.factor:g}",
                "-" if one.std is None else f"{one.std:.4g}",
                f"{one.nll:.4f}",
                f"{one.gain:+.4f} ± {one.error:.4f}",
                "chosen" if one is self.chosen else "",
            ]
            for one in self.tried
        ]
        return as_text(table(header, rows))


class Trials:
    """What was tried so far, the model as it was first; each leaves the model as it was."""

    def __init__(
        self,
        model: nn.Module,
        meant: Likelihood,
        passes: Callable[[], Iterator[Iterator[tuple[Any, Any]]]],
        collect: Callable[[int], None],
    ) -> None:
        self.model, self.meant, self.passes, self.collect = model, meant, passes, collect
        self.found: list[Tried] = []
        self.values: list[Tensor] = []

    def best(self) -> Tried:
        """The factor nearest to what there was that is within one standard error, or `MARGIN`, of the best.

        What there was is one of them, so that it stays unless another is better beyond noise. The noise of targets is
        always that of the held-out data: the one from data that the network was fitted to is known to be too low.
        """
        best = min(range(self.present, len(self.found)), key=lambda i: self.found[i].nll)
        way = [i for i in range(self.present, len(self.found)) if self._is_on_the_way(i, best)]
        for i in sorted(way, key=lambda i: abs(math.log(self.found[i].factor))):
            loss, error = _paired(self.values[best], self.values[i])
            if loss <= max(error, MARGIN):
                return self.found[i]
        return self.found[best]

    def _is_on_the_way(self, i: int, to: int) -> bool:
        """Whether a factor lies between 1 and another."""
        at, end = (math.log(self.found[number].factor) for number in (i, to))
        return at * end >= 0 and abs(at) <= abs(end)

    @property
    def present(self) -> int:
        """Which of what was tried has the factor that there was, with the noise of targets at its best."""
        return max(i for i, one in enumerate(self.found) if one.factor == 1.0)

    def climb(self, step: float) -> bool:
        """Go on by a step while that is better than the one before; whether the first was."""
        before = self.found[self.present]
        for power in range(1, MOST + 1):
            now = self.at(step**power)
            if now.nll >= before.nll:
                return power > 1
            before = now
        return True

    def at(self, factor: float) -> Tried:
        """Try one factor, the noise of the targets at its best, and remember it."""
        undo = [] if factor == 1.0 else scaled(self.model, factor)
        try:
            with kept_statistics(self.model):
                if undo:
                    self.collect(STATISTICS)
                outputs = self._log_probs()
        finally:
            put_back(undo)
        now = self.meant.std if isinstance(self.meant, Regression) and learns_noise(self.meant) else None
        if now is None or not self.found:
            self._add(factor, now, outputs(None))
        if now is not None:
            by_std = {std: outputs(std) for std in (now * _STDS).tolist()}
            std = max(by_std, key=lambda std: float(by_std[std].mean()))
            self._add(factor, std, by_std[std])
        return self.found[-1]

    def _add(self, factor: float, std: float | None, values: Tensor) -> None:
        self.values.append(values)
        nll = -float(values.mean())  # so much noise may overflow
        self.found.append(Tried(factor, std, nll if math.isfinite(nll) else math.inf, *_paired(values, self.values[0])))

    def _log_probs(self) -> Callable[[float | None], Tensor]:
        """The log-likelihood of every datum, as a function of the noise of the targets (None: as the task has it)."""
        kept: list[tuple[list[Tensor], Tensor]] = []
        values = []
        for passes in self.passes():
            each, outputs, latent = [], [], False
            for result, targets in passes:
                output, aim = batches.output_tensor(result), batches.targets_of(result, targets)
                latent = isinstance(result, batches.LatentOutput)
                each.append(self.meant.log_prob(output, aim).double().cpu())
                outputs.append(output)
            values.append(torch.stack(each).mean(0) if latent else _mixed(each))
            if learns_noise(self.meant):
                kept.append((outputs, aim))
        if not values:
            raise DataError("val: expected at least one batch, received none")
        as_is = torch.cat(values)

        def at(std: float | None) -> Tensor:
            if std is None:
                return as_is
            noise = Regression(std=std)
            with torch.no_grad():
                parts = [_mixed([noise.log_prob(output, aim).double().cpu() for output in all_]) for all_, aim in kept]
            return torch.cat(parts)

        return at


def learns_noise(meant: Likelihood) -> bool:
    """Whether a likelihood has noise of the targets that is learned, one number."""
    return isinstance(meant, Regression) and meant.noise == "learned"


def _paired(values: Tensor, others: Tensor) -> tuple[float, float]:
    """The mean of the differences, and its standard error; nothing can be said of a single datum."""
    gain = values - others
    return float(gain.mean()), float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else math.inf


def _mixed(log_probs: list[Tensor]) -> Tensor:
    """log of the mean over samples of p."""
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def _parts(model: nn.Module) -> Iterator[Posterior | BayesianLayer]:
    return (module for module in model.modules() if isinstance(module, (Posterior, BayesianLayer)))


def scaled(model: nn.Module, factor: float) -> list[Callable[[], None]]:
    """Multiply the spread of all that is random; returns what puts it back."""
    return [undo for part in _parts(model) if (undo := part.scale_noise_(factor)) is not None]


def put_back(undo: list[Callable[[], None]]) -> None:
    """Undo a scaling."""
    for one in reversed(undo):
        one()
