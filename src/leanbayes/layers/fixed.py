"""A layer with a weight that is not random, kept in a form of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from .bayes import BayesLayer

if TYPE_CHECKING:
    from ..posteriors.base import Posterior


class FixedLayer(BayesLayer):
    """A BayesLayer whose posteriors are points: every draw is the value, and there is no KL.

    >>> import torch
    >>> from torch import nn
    >>> from leanbayes.posteriors.sparse import SparsePoint
    >>> plain = nn.Linear(2, 1, bias=False)
    >>> layer = FixedLayer(plain, {"weight": SparsePoint.from_tensor(plain.weight, count=1)}, {})
    >>> int((layer.weight != 0).sum())
    1
    """

    def draw(self, name: str) -> Tensor | None:
        """The value."""
        return self.mean(name)

    def kl_terms(self) -> Iterator[tuple[Posterior, Callable[[], Tensor]]]:
        """None: nothing here is a distribution."""
        return iter(())
