"""Corrupted test images, for the experiments that measure how a network bears them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

import leanbayes as lb

from ..data import DataSet
from ..evaluation.corruption import Corruptions, cells, corrupted


def corrupted_tests(
    data: DataSet, limit: int, names: Sequence[str], severities: Sequence[int]
) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """Name, severity, images and labels: first the clean images ("clean", 0), then those of every corruption.

    limit: the most test images. names: none for all corruptions that suit the images.
    """
    inputs, targets = (part[:limit] for part in data.test.tensors)
    pixels = lb.Pixels(tuple(data.mean.tolist()), tuple(data.std.tolist()))
    config = Corruptions(names=tuple(names), severities=tuple(severities), limit=limit)
    yield "clean", 0, inputs, targets
    for name, severity in cells(config, tuple(inputs.shape[1:])):
        for x, y in corrupted([(inputs, targets)], name, severity, config, pixels):
            yield name, severity, x, y
