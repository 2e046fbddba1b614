"""Figure 10 of variational nested dropout: accuracy, calibration and out-of-domain detection against the width.

BN3: the nested posterior, trained once and asked at every width. DT-BN3: the same at its means. FN3: nested dropout,
with the same sharing of draws and uniform tails. FN3-TS: FN3 with a temperature for every width, fitted to images
that were held out. IBNN: a Bayesian network trained for each width, in the shape that BN3 is cut to.

The paper shows curves and no table. Its networks see all of CIFAR-10 for 600 epochs; those of the cpu preset are
small, see a part of the data for 30, and IBNN is trained at the ends of the range alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from . import workload
from .base import Jobs, Metrics, Row, recipe
from .nested import SETTINGS, Setting, at_width, held_out, network, piece_key, quality

NESTED = {"BN3": "BN3", "DT-BN3": "BN3", "FN3": "FN3", "FN3-TS": "FN3"}
METRICS = ("accuracy", "nll", "ece", "AUPR", "AUROC")


@recipe(
    "nested-widths",
    "nested posteriors, figure 10: accuracy, ECE and out-of-domain detection at every width, trained once",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every method and width; the setting is the width."""
    for setting in SETTINGS[preset]:
        data, seeds = setting.run.data, range(setting.seeds)
        for name, kind in NESTED.items():
            for width in setting.widths:
                runs = [_piece(jobs, setting, name, kind, seed, width) for seed in seeds]
                yield Row(data, name, width, runs, paper={})
        for width in setting.alone:
            runs = [_piece(jobs, setting, "IBNN", "IBNN", seed, width) for seed in seeds]
            yield Row(data, "IBNN", width, runs, paper={})


def figure(result: Mapping[str, Any]) -> str:
    """The result as SVG."""
    from ..report.sparse import lines

    return lines(result, "Trained once, asked at every width", "width", float, METRICS)


def _piece(jobs: Jobs, setting: Setting, name: str, kind: str, seed: int, width: float) -> Metrics:
    own = width if kind == "IBNN" else 1.0
    key = piece_key(setting, kind, seed, own, measured=name, at=width, held_out=setting.held_out)
    work = partial(_measured, jobs, setting, name, kind, seed, width)
    return jobs(key, work, label=f"{name} at width {width:g} on {setting.run.data}, seed {seed}")


def _measured(jobs: Jobs, setting: Setting, name: str, kind: str, seed: int, width: float) -> Metrics:
    import leanbayes as lb

    data = workload.load(setting.run)
    if kind == "IBNN":
        return quality(setting, network(jobs, setting, kind, seed, width), data, seed)
    means = name == "DT-BN3"
    model = at_width(setting, network(jobs, setting, kind, seed), data, width, means=means)
    if name == "FN3-TS":
        lb.calibrate_(model, held_out(setting), samples=1, progress=False)
    return quality(setting, model, data, seed, **({"mean_only": True} if means else {}))
