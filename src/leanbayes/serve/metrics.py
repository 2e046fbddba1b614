"""Counters of all workers in one array, in the text format that Prometheus reads."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CODES = ("200", "400", "404", "405", "408", "413", "415", "429", "500", "503", "other")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True)
class Family:
    """A metric: a counter or gauge for each label, or a histogram with bounds."""

    name: str
    kind: str
    about: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    bounds: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Numbers that it takes: for a histogram a bucket for each bound, one above them, and the sum."""
        return len(self.bounds) + 2 if self.bounds else len(self.values)


FAMILIES = (
    Family("requests_total", "counter", "Requests by their status.", "code", CODES),
    Family("data_total", "counter", "Data predicted.", "outcome", ("answered", "abstained")),
    Family("worker_starts_total", "counter", "Workers started, those that replace a lost one among them."),
    Family("requests_in_progress", "gauge", "Requests that are not answered yet."),
    Family(
        "request_seconds", "histogram", "From the first byte of a prediction's request to its answer.", bounds=_SECONDS
    ),
    Family("batch_seconds", "histogram", "Time of the model for a batch.", bounds=_SECONDS),
    Family("batch_data", "histogram", "Data in a batch.", bounds=_ROWS),
)
SIZE = sum(family.size for family in FAMILIES)


class Metrics:
    """Numbers of one worker; they outlive it in a file that the workers share, and `text` adds all of them up.

    >>> metrics = Metrics()
    >>> metrics.count("requests_total", "200")
    >>> metrics.observe("batch_data", 3)
    >>> [line for line in metrics.text().splitlines() if line.endswith(" 1")][:2]
    ['leanbayes_requests_total{code="200"} 1', 'leanbayes_batch_data_bucket{le="4"} 1']
    """

    def __init__(self, path: Path | None = None, worker: int = 0, workers: int = 1) -> None:
        if path is None:
            self.all = np.zeros((workers, SIZE))
        else:
            self.all = np.memmap(path, np.float64, "r+", shape=(workers, SIZE))
        self.own = self.all[worker]
        self.at: dict[str, int] = {}
        self.families = {family.name: family for family in FAMILIES}
        start = 0
        for family in FAMILIES:
            self.at[family.name] = start
            start += family.size
        self.own[self.at["requests_in_progress"]] = 0  # those of a lost worker are lost

    @staticmethod
    def create(path: Path, workers: int) -> None:
        """The file that workers share."""
        np.zeros((workers, SIZE)).tofile(path)

    def count(self, name: str, label: str = "", by: float = 1) -> None:
        """Add to a counter or a gauge."""
        values = self.families[name].values
        self.own[self.at[name] + values.index(label if label in values else "other")] += by

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        bounds = self.families[name].bounds
        self.own[self.at[name] + bisect_left(bounds, value)] += 1
        self.own[self.at[name] + len(bounds) + 1] += value

    def value(self, name: str, label: str = "") -> float:
        """A counter or gauge, over all workers."""
        return float(self.all[:, self.at[name] + self.families[name].values.index(label)].sum())

    def text(self) -> str:
        """All metrics of all workers (version 0.0.4 of the format)."""
        total = self.all.sum(0)
        return "".join(f"{line}\n" for family in FAMILIES for line in self._lines(family, total))

    def _lines(self, family: Family, total: np.ndarray) -> Iterator[str]:
        name, numbers = f"leanbayes_{family.name}", total[self.at[family.name] :][: family.size].tolist()
        yield f"# HELP {name} {family.about}"
        yield f"# TYPE {name} {family.kind}"
        if not family.bounds:
            for label, number in zip(family.values, numbers, strict=True):
                yield f'{name}{{{family.label}="{label}"}} {number:.15g}' if label else f"{name} {number:.15g}"
            return
        below = np.cumsum(numbers[:-1]).tolist()
        for bound, number in zip((*family.bounds, math.inf), below, strict=True):
            yield f'{name}_bucket{{le="{"+Inf" if bound == math.inf else f"{bound:g}"}"}} {number:.15g}'
        yield f"{name}_sum {numbers[-1]:.15g}"
        yield f"{name}_count {below[-1]:.15g}"
