"""`leanbayes compress`: prune a saved network, cut it out, or make a cascade of its widths, and write the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..checks import option
from ..errors import ConfigError
from . import checks


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
        cheapest: what max_loss and accuracy spend least of: MACs, or the time of one datum on this machine.
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
    cheapest: Literal["macs", "milliseconds"] = "macs"
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
        from .compressing import compressed

        return compressed(self)

    def wishes(self) -> dict[str, float]:
        """What a cascade is tuned for."""
        every = {name: vars(self)[name] for name in ("max_loss", "accuracy", "macs", "milliseconds")}
        return {name: value for name, value in every.items() if value is not None}

    def _check(self) -> None:
        checks.counts(samples=self.samples, round_to=self.round_to)
        checks.seed(self.seed)
        checks.targets(out=self.out)
        if self.out.resolve() == self.file.resolve():
            raise ConfigError(f"--out: expected another file than the model's, received {str(self.out)!r}")
        checks.fractions(prune=self.prune)
        wishes = list(map(option, self.wishes()))
        if len(wishes) > 1:
            raise ConfigError(f"{wishes[1]}: expected one wish, received {len(wishes)}; drop the others")
        if wishes and len(self.widths) < 2:
            raise ConfigError(f"{wishes[0]}: expected several --widths beside it, for a cascade")
        if self.cheapest != "macs" and len(self.widths) < 2:
            raise ConfigError("--cheapest: expected several --widths beside it, for a cascade")
        if (self.channels or self.round_to > 1) and self.prune is None:
            raise ConfigError("--channels, --round-to: expected --prune SHARE beside them, received none")
