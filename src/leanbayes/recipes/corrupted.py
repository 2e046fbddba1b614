"""Corrupted test images, for the experiments that measure robustness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import leanbayes as lb

from ..data import DataSet
from ..evaluation.corruption_sweep import Corruptions, cells, corrupted


@dataclass(frozen=True)
class Sweep:
    """The first `limit` test images under corruptions; without names, under all that suit the images."""

    limit: int = 500
    names: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)

    def key(self) -> dict[str, Any]:
        """All that the images depend on, for `Jobs`."""
        return {"images": self.limit, "names": list(self.names), "severities": list(self.severities)}

    def images(self, data: DataSet) -> Iterator[tuple[str, int, Tensor, Tensor]]:
        """Yield name, severity, images and labels: first the clean images ("clean", 0), then every corruption."""
        inputs, targets = (part[: self.limit] for part in data.test.tensors)
        pixels = lb.Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
        config = Corruptions(names=self.names, severities=self.severities, limit=self.limit)
        yield "clean", 0, inputs, targets
        for name, severity in cells(config, tuple(inputs.shape[1:])):
            for x, y in corrupted([(inputs, targets)], name, severity, config, pixels):
                yield name, severity, x, y
