"""Every criterion of `prune_` on a mean-field posterior, single weights and whole channels, beside one another.

Random weights are removed from the whole network at once (scope "global"), without training afterwards; BatchNorm's
statistics are re-estimated after each cut. The setting is the share asked for: of the weights, or of the channels that
may go. removed: the share of random weights that this is. MACs, parameters: of the network that `extract` makes of it,
as a share of those before, where whole channels went; single weights leave them as they were. No paper has this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

import leanbayes as lb

from ...compress.curve import pruning_curve
from ...data import DataSet
from ..experiment import Cell, Experiment, grid
from ..figures.charts import lines
from ..results import Measured
from ..training import Training, network_cell

CRITERIA = ("magnitude", "expected_magnitude", "snr", "log_alpha", "kappa")
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9)
METHODS = {"*": lb.MeanField()}


class MeanFieldTraining(Training):
    """As `Training`, with `fit`'s own weight of the KL, and BatchNorm's statistics under the noise of `predict`."""

    def fit_options(self, data: DataSet) -> dict[str, Any]:
        """The schedule of the learning rate, and the library's own defaults."""
        return {**super().fit_options(data), "kl_weight": None, "recalibrate": True}


LENET = MeanFieldTraining("fashion-mnist", "lenet5", methods=METHODS, epochs=6, limit=20_000, test_limit=2000)
NARROW = {"width": 8, "stem_stride": 2}
RESNET = replace(LENET, data="cifar10", model="resnet18_cifar", options=NARROW, epochs=8, batch_size=100)
SETUPS = {
    "smoke": (replace(LENET, data="digits", model="convnet", epochs=2, batch_size=50, limit=600, lr=3e-3),),
    "cpu": (LENET, RESNET),
    "paper": (replace(LENET, epochs=40, limit=None), replace(RESNET, epochs=80, limit=None, augment=True)),
}
SAMPLES = {"smoke": 2, "cpu": 4, "paper": 16}


def cells(preset: str) -> Iterator[Cell]:
    """A piece for every network, criterion and kind, which makes a row for every share."""
    for training in SETUPS[preset]:
        for at in grid(channels=(False, True), by=CRITERIA):
            by, channels, samples = at["by"], at["channels"], SAMPLES[preset]
            also = {"measured": "pruning", "by": by, "channels": channels, "fractions": FRACTIONS, "samples": samples}
            what = f"{by}, {'channels' if channels else 'weights'}"
            yield network_cell(
                training.data, training, what, "shares", partial(measured, by, channels, samples), **also
            )


def measured(by: str, channels: bool, samples: int, model: nn.Module, data: DataSet, seed: int) -> Measured:
    """A row for every share."""
    options: dict[str, Any] = {"by": by, "fractions": FRACTIONS, "channels": channels, "train": data.train}
    example = data.test.tensors[0][:2]
    curve = pruning_curve(model, data.test, **options, samples=samples, seed=seed, example_input=example)
    whole = curve.points[0]
    what, rows = f"{by}, {'channels' if channels else 'weights'}", []
    for point in curve.points:
        row: dict[str, Any] = {"method": what, "setting": point.fraction, "accuracy": point.accuracy}
        row |= {"nll": point.nll, "ece": point.ece, "removed": point.removed}
        if point.macs is not None and point.parameters is not None and whole.macs and whole.parameters:
            row |= {"parameters": point.parameters / whole.parameters, "MACs": point.macs / whole.macs}
        rows.append(row)
    return {"rows": rows}


def figure(result: Mapping[str, Any]) -> str:
    """Accuracy and NLL against the share asked for: a line for every criterion, weights and channels side by side."""
    rows = []
    for row in result["rows"]:
        by, kind = row["method"].split(", ")
        rows.append({**row, "method": by, "dataset": f"{row['dataset']}, {kind}"})
    drawn: str = lines("What criteria of pruning keep", "share asked for", ("accuracy", "nll"))({"rows": rows})
    return drawn


EXPERIMENT = Experiment("pruning", cells, figure=figure)
