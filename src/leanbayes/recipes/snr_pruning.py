"""Table 1 of variational nested dropout: a nested posterior cut to size, beside pruning by signal to noise.

SNR: a Bayesian network of full width (IBNN), whose weights with the lowest |mu| / sigma are set to zero. BN3: the
nested network at the width whose share of weights is nearest to what pruning leaves; the setting is the share
removed, and "removed" what it came to. The figures in brackets are of VGG11 after 600 epochs. BatchNorm's statistics
are re-estimated after each cut, for both.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from . import workload
from .base import Jobs, Metrics, Row, recipe
from .nested import SETTINGS, Setting, at_width, network, piece_key, quality, share_of_weights

REMOVED = (0.0, 0.2, 0.4, 0.6, 0.8)
PAPER: dict[str, dict[str, dict[float, tuple[float, float]]]] = {
    "cifar10": {
        "SNR": {
            0.0: (0.904, 0.076),
            0.2: (0.903, 0.076),
            0.4: (0.904, 0.076),
            0.6: (0.894, 0.080),
            0.8: (0.296, 0.494),
        },
        "BN3": {
            0.0: (0.918, 0.071),
            0.2: (0.919, 0.070),
            0.4: (0.915, 0.072),
            0.6: (0.911, 0.080),
            0.8: (0.856, 0.097),
        },
    }
}


@recipe(
    "snr-pruning",
    "nested posteriors, table 1: BN3 cut to size beside a Bayesian network pruned by signal to noise",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every method and share of weights removed."""
    for setting in SETTINGS[preset]:
        known = PAPER.get(setting.run.data, {})
        for name, kind in (("SNR", "IBNN"), ("BN3", "BN3")):
            for removed in REMOVED:
                runs = []
                for seed in range(setting.seeds):
                    key = piece_key(setting, kind, seed, measured="snr-pruning", removed=removed)
                    work = partial(measured, jobs, setting, kind, seed, removed)
                    label = f"{name} without {removed:.0%} of the weights on {setting.run.data}, seed {seed}"
                    runs.append(jobs(key, work, label=label))
                paper = dict(zip(("accuracy", "ece"), known[name][removed], strict=True)) if known else {}
                yield Row(setting.run.data, name, removed, runs, paper=paper)


def measured(jobs: Jobs, setting: Setting, kind: str, seed: int, removed: float) -> Metrics:
    """A network without so many of its weights."""
    import leanbayes as lb

    data, model = workload.load(setting.run), network(jobs, setting, kind, seed)
    if kind == "BN3":
        width, left = nearest_width(model, 1 - removed)
        found = at_width(setting, model, data, width)
        return {**quality(setting, found, data, seed), "removed": 1 - left, "width": width}
    pruned = copy.deepcopy(model)
    report = lb.prune_(pruned, by="snr", fraction=removed) if removed else None
    lb.recalibrate_(pruned, data.train, data=setting.clean)
    gone = 1 - report.kept / report.total if report else 0.0
    return {**quality(setting, pruned, data, seed), "removed": gone}


def nearest_width(model: Any, share: float) -> tuple[float, float]:
    """The width whose share of weights is nearest to the one asked for, and that share."""
    import leanbayes as lb

    shares = {width: share_of_weights(model, width) for width in lb.widths(model)}
    width = min(shares, key=lambda one: abs(shares[one] - share))
    return width, shares[width]


def figure(result: Mapping[str, Any]) -> str:
    """Accuracy and calibration against the share of weights removed, as SVG."""
    from ..report.sparse import lines

    return lines(result, "Cut or pruned", "share of weights removed", float, ("accuracy", "ece"))
