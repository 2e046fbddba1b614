"""The weights of all samples of a small network drawn at once, which is faster than one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..sampling import Site


class Weights:
    """The draws of posteriors in several samples, made at the first read, equal to single draws to the bit.

    noise: of a site in all samples, (samples, ...), or None if its draws are made one by one.
    at: the sample of `of_sample`.
    """

    at: int = 0

    def __init__(self, noise: Callable[[Site], Tensor | None]) -> None:
        self.noise = noise
        self.made: dict[int, tuple[Tensor, ...] | None] = {}

    def of_samples(self, site: Site) -> Tensor | None:
        """The draws of a posterior, (samples, ...), or None if its class makes them one by one, or with gradients.

        Only the class itself counts, since a subclass may draw otherwise.
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
