"""How long a cascade takes beside its last stage, where images stop at each stage as in results/cascade.cpu.json.

The networks are those of the recipe, with the weights they begin with: time depends on how many images go on, not on
which. Thresholds are set so that the shares of the recorded test images stop at each stage, of 512 test images.
Ratios are medians over rounds, the two in turns; "stage" rows are a stage's own time as a share of the last one's. On
one thread processor time is measured.

    python benchmarks/cascade.py --threads 1
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import leanbayes as lb
from common import interleaved, parser, passes, publish, result, started, timing
from leanbayes.convert import record
from leanbayes.recipes.compress.cascade import SETUPS, WIDTHS

RECORDED = Path(__file__).parents[1] / "results" / "cascade.cpu.json"
BATCHES = (1, 64)


def shares(data: str) -> list[float]:
    """Of the images that a stage is asked, how many it answers; as the recipe found."""
    rows = json.loads(RECORDED.read_text())["rows"]
    found = next(row["metrics"] for row in rows if row["dataset"] == data and row["method"] == "cascade")
    answered = [found[f"answered at {100 * width:g} %"]["mean"] for width in WIDTHS]
    return [answered[k] / sum(answered[k:]) for k in range(len(answered) - 1)]


def set_thresholds(cascade: lb.Cascade, x: Tensor, stopping: list[float]) -> None:
    """Let such shares of the images that reach a stage stop there."""
    thresholds, left = [], x
    for number, share in enumerate(stopping):
        with torch.inference_mode():
            score = cascade.unsureness(cascade.likelihood(number).probs(cascade.stages[number](left)))
        thresholds.append(float(score.quantile(share)))
        left = left[score > thresholds[-1]]
    cascade.set_thresholds(thresholds)


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=9).parse_args()
    clock, settings = started(options)
    raw: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    rows = [("data, batch", "x of the whole, median", "minima", "ms, cascade", "ms, whole")]
    for training in SETUPS["smoke" if options.quick else "cpu"]:
        torch.manual_seed(0)
        data = training.load()
        model = training.network(data)
        training.convert_(model)
        few = TensorDataset(*(part[:500] for part in data.train.tensors))
        cascade = lb.Cascade(model, widths=WIDTHS, loader=few, fold_batchnorm=True)
        for stage in cascade.stages:  # as after `calibrate_`
            record.ensure(stage).trained(lb.Classification(temperature=1.1).to_dict())
        images = data.test.tensors[0][:512]
        stopping = [0.5, 0.5] if options.quick else shares(training.data)
        set_thresholds(cascade, images, stopping)
        for batch in BATCHES:
            batches = images[: 256 if batch == 1 else None].split(batch)
            runs = {"whole": passes(cascade.stages[-1], batches), "cascade": passes(cascade, batches)}
            runs |= {f"stage {k + 1}": passes(stage, batches) for k, stage in enumerate(cascade.stages[:-1])}
            seconds = interleaved(runs, 2 if options.quick else options.repeats, clock)
            each = {who: timing([s / len(batches) for s in taken], [s / len(batches) for s in seconds["whole"]])
                    for who, taken in seconds.items()}  # fmt: skip
            label = f"{training.data}, batch {batch}"
            raw[label] = {**each, "stopping": stopping, "thresholds": list(cascade.thresholds)}
            for who in runs:
                if who != "whole":
                    ratios[f"{label}, {who}"] = each[who]["median_of_ratios"]
                    figures = [each[who]["median_of_ratios"], each[who]["ratio_of_minima"]]
                    spent = [1e3 * each[one]["seconds_min"] for one in (who, "whole")]
                    rows.append((f"{label}, {who}", *(f"{value:.3f}" for value in (*figures, *spent))))
    publish(
        result("cascade", ratios, raw, **settings), options, f"A cascade, {torch.get_num_threads()} thread(s)", rows
    )


if __name__ == "__main__":
    main()
