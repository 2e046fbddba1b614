"""Weights of all samples at once: a small network takes longer to draw them one by one than to use them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..sampling import Site


class Weights:
    """The draws of posteriors in several samples, all made when the first is asked for, and to the bit as one by one.

    noise: that of a site in all samples, (samples, ...); None where its draws are made one by one.
    at: which of the samples `of_sample` gives.
    """

    at: int = 0

    def __init__(self, noise: Callable[[Site], Tensor | None]) -> None:
        self.noise = noise
        self.made: dict[int, tuple[Tensor, ...] | None] = {}

    def of_samples(self, site: Site) -> Tensor | None:
        """The draws of a posterior, (samples, ...); None where its class does not make several at once.

        The class itself: a subclass may draw otherwise. Not with gradients, which want a graph for each sample.
        """
        samples = vars(type(site)).get("samples")
        if samples is None or torch.is_grad_enabled() or (noise := self.noise(site)) is None:
            return None
        return samples(site, noise)  # type: ignore[no-any-return]

    def of_sample(self, site: Site) -> Tensor | None:
        """The draw in the present sample."""
        key = id(site)
        if key not in self.made:
            drawn = self.of_samples(site)
            self.made[key] = None if drawn is None else drawn.unbind()
        return None if (each := self.made[key]) is None else each[self.at]
