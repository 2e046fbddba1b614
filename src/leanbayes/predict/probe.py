"""How much of a network runs before its first random draw: what decides how samples are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .. import batches, sampling
from ..layers.sparse import dense_path


@dataclass(frozen=True)
class Probe:
    """prefix: the share of the arithmetic before the first draw."""

    prefix: float

    def vmap_pays(self, samples: int, together: int) -> bool:
        """Whether vectorised passes, each of so many samples together, beat a pass a sample.

        A loop costs S passes; vmap costs prefix * ceil(S / together) + r * S * (1 - prefix), where r > 1 because every
        sample then has weights of its own. benchmarks/predict.py finds r = 2 to 2.4 for the last block, the last stage
        or all of ResNet-18. Where few data share the weights r is larger (5 or 6 at 8 data and 512 channels), but then
        the noise, which costs both the same, outweighs it: the wrong choice costs a fifth.
        """
        once = self.prefix * math.ceil(samples / together)
        return once + 2.0 * samples * (1.0 - self.prefix) < samples


def probe(model: nn.Module, inputs: Any) -> Probe:
    """Run one datum, counting. The sites of a model that has run know the shapes of their noise."""
    counter = FlopCounterMode(display=False)
    before: list[int] = []

    def watch(site: nn.Module) -> None:
        if not before:
            before.append(counter.get_total_flops())

    with sampling.using(estimator="weight"), counter, sampling.watching(watch), dense_path():
        batches.call(model, batches.rows(inputs, 0, 1))
    total = counter.get_total_flops()
    return Probe((before[0] if before else total) / total if total else 0.0)
