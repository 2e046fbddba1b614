"""Trying factors on the amount of noise of a model, by the likelihood of held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import batches
from ..errors import DataError
from ..files import plain
from ..layers.contract import BayesianLayer
from ..likelihoods import Classification, Likelihood, Regression
from ..posteriors.base import Posterior
from ..report.table import as_text, table
from .recalibrate import kept_statistics

STEP, MOST = 2.0, 4
"""Factors are tried in steps of this size, up to so many in each direction."""
MARGIN = 0.005
"""The least gain in NLL that justifies a change: data that are all classified well slightly prefer no noise."""
ACCURACY = 0.01
"""The most accuracy on held-out data that a factor may cost; a single datum is always allowed."""
STATISTICS = 2_000
"""Number of data for BatchNorm's statistics, which are collected anew for each factor."""
_STDS = torch.logspace(-1, 1, 101, dtype=torch.float64)  # relative to the learned noise of a regression


@dataclass(frozen=True)
class Tried:
    """The result of one factor on the noise of a model.

    std: the best noise of the targets for this factor, of a regression that learns it; None otherwise.
    nll: the mean negative log-likelihood of the held-out data. gain: how far it is below that of the model before, with
    its standard error. accuracy: of the held-out data, of a classification.
    """

    factor: float
    std: float | None
    nll: float
    gain: float = 0.0
    error: float = 0.0
    accuracy: float | None = None


@dataclass(frozen=True)
class Tuning:
    """What `tune_noise_` chose, and everything it tried, first the model as it was. Printing gives a table."""

    factor: float
    std: float | None
    tried: tuple[Tried, ...]

    @property
    def chosen(self) -> Tried:
        """The result that was chosen."""
        return next(t for t in self.tried if (t.factor, t.std) == (self.factor, self.std))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; None in place of numbers that are not finite."""
        return plain(asdict(self))  # type: ignore[no-any-return]

    def summary(self) -> str:
        """One line of text."""
        std = "" if self.std is None else f", noise of the targets {self.std:.4g}"
        return f"noise x {self.factor:g}{std}: val_nll {self.tried[0].nll:.4g} -> {self.chosen.nll:.4g}"

    def __str__(self) -> str:
        header = ["noise", "noise of targets", "accuracy", "val NLL", "better by", ""]
        rows = [
            [
                f"x {t.factor:g}",
                "-" if t.std is None else f"{t.std:.4g}",
                "-" if t.accuracy is None else f"{t.accuracy:.4f}",
                f"{t.nll:.4f}",
                f"{t.gain:+.4f} ± {t.error:.4f}",
                "chosen" if t is self.chosen else "",
            ]
            for t in self.tried
        ]
        return as_text(table(header, rows))


class Trials:
    """Tries factors one after the other, first 1; each trial leaves the model as it was."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        passes: Callable[[], Iterator[Iterator[tuple[Any, Any]]]],
        collect: Callable[[int], None],
    ) -> None:
        self.model, self.likelihood, self.passes, self.collect = model, likelihood, passes, collect
        self.found: list[Tried] = []
        self.values: list[Tensor] = []
        self.right: list[Tensor] = []

    def best(self) -> Tried:
        """The factor nearest to 1 whose NLL is within one standard error, or `MARGIN`, of the best.

        Factors that cost accuracy are left out: a network too sure of itself likes more noise than its means can bear.
        The noise of targets is always that of the held-out data, since that of the training data is too low, and one
        standard error above (std / sqrt(2 n) for n data), since too little noise costs more than as much too much.
        """
        allowed = [i for i in range(self.present, len(self.found)) if not self._costs_accuracy(i)]
        best = min(allowed, key=lambda i: self.found[i].nll)
        way = [i for i in allowed if self._is_on_the_way(i, best)]
        for i in sorted(way, key=lambda i: abs(math.log(self.found[i].factor))):
            loss, error = _paired(self.values[best], self.values[i])
            if loss <= max(error, MARGIN):
                return self.found[i]
        return self.found[best]

    def _costs_accuracy(self, i: int) -> bool:
        if not self.right:
            return False
        lost = float((self.right[self.present] - self.right[i]).sum())
        return lost > max(1.0, ACCURACY * len(self.right[i]))

    def _is_on_the_way(self, i: int, to: int) -> bool:
        """Whether a factor lies between 1 and the factor number ``to``."""
        at, end = (math.log(self.found[number].factor) for number in (i, to))
        return at * end >= 0 and abs(at) <= abs(end)

    @property
    def present(self) -> int:
        """The number of the result for factor 1, with the best noise of targets."""
        return max(i for i, one in enumerate(self.found) if one.factor == 1.0)

    def climb(self, step: float) -> bool:
        """Try further factors while the NLL falls; returns whether the first one was better."""
        before = self.found[self.present]
        for power in range(1, MOST + 1):
            now = self.at(step**power)
            if now.nll >= before.nll:
                return power > 1
            before = now
        return True

    def at(self, factor: float) -> Tried:
        """Try one factor, with the best noise of the targets, and record the result."""
        undo = [] if factor == 1.0 else scaled(self.model, factor)
        try:
            with kept_statistics(self.model):
                if undo:
                    self.collect(STATISTICS)
                outputs = self._log_probs()
        finally:
            put_back(undo)
        now = self.likelihood.std if isinstance(self.likelihood, Regression) and learns_noise(self.likelihood) else None
        if now is None or not self.found:
            self._add(factor, now, outputs(None))
        if now is not None:
            by_std = {std: outputs(std) for std in (now * _STDS).tolist()}
            std = max(by_std, key=lambda std: float(by_std[std].mean()))
            std *= 1 + 1 / (2 * len(by_std[std])) ** 0.5  # a standard error above, since too little costs more
            self._add(factor, std, outputs(std))
        return self.found[-1]

    def _add(self, factor: float, std: float | None, values: Tensor) -> None:
        self.values.append(values)
        nll = -float(values.mean())  # which may overflow
        accuracy = float(self.right[-1].mean()) if self.right else None
        gain, error = _paired(values, self.values[0])
        self.found.append(Tried(factor, std, nll if math.isfinite(nll) else math.inf, gain, error, accuracy))

    def _log_probs(self) -> Callable[[float | None], Tensor]:
        """The log-likelihood of every datum, as a function of the noise of the targets (None: that of the task)."""
        kept: list[tuple[list[Tensor], Tensor]] = []
        values, right = [], []
        for passes in self.passes():
            each, outputs, latent = [], [], False
            for result, targets in passes:
                output, aim = batches.output_tensor(result), batches.targets_of(result, targets)
                latent = isinstance(result, batches.LatentOutput)
                each.append(self.likelihood.log_prob(output, aim).double().cpu())
                outputs.append(output)
            values.append(torch.stack(each).mean(0) if latent else _mixed(each))
            if learns_noise(self.likelihood):
                kept.append((outputs, aim))
            if isinstance(self.likelihood, Classification):
                right.append(_is_right(self.likelihood, outputs, aim))
        if not values:
            raise DataError("val: expected at least one batch, received none")
        as_is = torch.cat(values)
        if right:
            self.right.append(torch.cat(right))

        def at(std: float | None) -> Tensor:
            if std is None:
                return as_is
            noise = Regression(std=std)
            with torch.no_grad():
                parts = [_mixed([noise.log_prob(output, aim).double().cpu() for output in all_]) for all_, aim in kept]
            return torch.cat(parts)

        return at


def learns_noise(likelihood: Likelihood) -> bool:
    """Whether a likelihood learns the noise of the targets."""
    return isinstance(likelihood, Regression) and likelihood.noise == "learned"


def _paired(values: Tensor, others: Tensor) -> tuple[float, float]:
    """The mean of the differences, and its standard error, which is infinite for a single datum."""
    gain = values - others
    return float(gain.mean()), float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else math.inf


def _is_right(likelihood: Likelihood, outputs: list[Tensor], targets: Tensor) -> Tensor:
    """Whether the class that is likeliest on average over samples is the label of a datum."""
    probs = torch.stack([likelihood.probs(output) for output in outputs]).mean(0)
    return (probs.argmax(-1) == likelihood.align(outputs[0], targets)).double().cpu()


def _mixed(log_probs: list[Tensor]) -> Tensor:
    """The log of the mean over samples of p."""
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def scaled(model: nn.Module, factor: float) -> list[Callable[[], None]]:
    """Multiply the spread of all random parts of a model; returns functions that undo it (`put_back`)."""
    parts = (module for module in model.modules() if isinstance(module, (Posterior, BayesianLayer)))
    return [undo for part in parts if (undo := part.scale_noise_(factor)) is not None]


def put_back(undo: list[Callable[[], None]]) -> None:
    """Undo a scaling."""
    for function in reversed(undo):
        function()
