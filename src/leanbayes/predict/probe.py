"""How much of a network runs before its first random draw: what decides how samples are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .. import batches, sampling


@dataclass(frozen=True)
class Probe:
    """prefix: the share of the arithmetic before the first draw. convolutions: their share of what comes after it."""

    prefix: float
    convolutions: float

    def vmap_pays(self, samples: int) -> bool:
        """Whether one vectorised pass beats a pass a sample.

        A loop costs S; vmap costs prefix + r * S * (1 - prefix), where r is about 1 for matrix products and about 2 for
        convolutions, whose weights then differ between samples (benchmarks/predict.py measures it).
        """
        rest = 1.0 - self.prefix
        return self.prefix + (1.0 + self.convolutions) * samples * rest < samples


def probe(model: nn.Module, inputs: Any) -> Probe:
    """Run one datum, counting. The sites of a model that has run know the shapes of their noise."""
    counter = FlopCounterMode(display=False)
    before: list[dict[str, int]] = []

    def watch(site: nn.Module) -> None:
        if not before:
            before.append(_by_kind(counter))

    with sampling.using(estimator="weight"), counter, sampling.watching(watch):
        batches.call(model, batches.rows(inputs, 0, 1))
    total = _by_kind(counter)
    first = before[0] if before else total
    rest = {kind: total[kind] - first[kind] for kind in total}
    amount = sum(total.values())
    return Probe(
        prefix=sum(first.values()) / amount if amount else 0.0,
        convolutions=rest["convolution"] / max(sum(rest.values()), 1),
    )


def _by_kind(counter: FlopCounterMode) -> dict[str, int]:
    kinds = {"convolution": 0, "other": 0}
    for operation, flops in counter.get_flop_counts().get("Global", {}).items():
        kinds["convolution" if "convolution" in str(operation) else "other"] += flops
    return kinds
