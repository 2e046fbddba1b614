"""Appendix C.2 of variational nested dropout: how many images BatchNorm's statistics need at a new width.

The nested network of nested-widths at every width, its statistics as training left them (averages over all widths),
from 256 and 1,024 images, and from all training images. The paper shows curves and no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from . import workload
from .base import Jobs, Metrics, Row, recipe
from .nested import SETTINGS, Setting, at_width, network, piece_key, quality

IMAGES: dict[str, int | None] = {"as trained": 0, "256 images": 256, "1,024 images": 1024, "all images": None}


@recipe(
    "bn-statistics",
    "nested posteriors, appendix C.2: BatchNorm statistics at a width from few images or all",
    seeds={name: max(setting.seeds for setting in settings) for name, settings in SETTINGS.items()},
)
def rows(preset: str, jobs: Jobs) -> Iterator[Row]:
    """A row for every number of images and width."""
    for setting in SETTINGS[preset]:
        for name, images in IMAGES.items():
            for width in setting.widths:
                runs = []
                for seed in range(setting.seeds):
                    key = piece_key(setting, "BN3", seed, measured="bn-statistics", at=width, images=images)
                    work = partial(measured, jobs, setting, seed, width, images)
                    label = f"statistics of {name} at width {width:g} on {setting.run.data}, seed {seed}"
                    runs.append(jobs(key, work, label=label))
                yield Row(setting.run.data, name, width, runs, paper={})


def measured(jobs: Jobs, setting: Setting, seed: int, width: float, images: int | None) -> Metrics:
    """Quality with statistics from so many images; 0 leaves them as they are."""
    import leanbayes as lb

    data, model = workload.load(setting.run), network(jobs, setting, "BN3", seed)
    if images == 0:
        lb.set_width_(model, width)
    else:
        model = at_width(setting, model, data, width, clean=images)
    return quality(setting, model, data, seed)


def figure(result: Mapping[str, Any]) -> str:
    """Accuracy and loss against the width, a line for every number of images, as SVG."""
    from ..report.sparse import lines

    return lines(result, "BatchNorm statistics at a width", "width", float, ("accuracy", "nll"))
