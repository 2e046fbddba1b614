"""RigL (Evci et al., 2020): the deterministic relative of sparse subspace VI, to compare it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...registry import register
from .config import SparseTraining

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...posteriors.base import Posterior
    from ...posteriors.sparse import Sparse


@register
@dataclass(frozen=True)
class Rigl(SparseTraining):
    """A share of the weights has values, the others are exactly zero; which ones is learned. Nothing is random.

    Every `interval` steps the smallest weights of a layer are replaced by the places with the largest gradients.

    Args:
        density: the share of active weights, in (0, 1].
        allocation: the same share of every layer, or more of small ones ("erdos-renyi": section 3, ERK).
        interval: gradient steps between two updates (Delta T).
        replacement: the share of the active weights that an update replaces at first (alpha).
        schedule: how that share falls to zero until the last update; constant keeps it.
        until: the last update comes after this fraction of training.
        keep_returning: a weight that is removed and chosen again in one update keeps its value.
        keep_weights: start from the largest pretrained weights; otherwise from random places and fresh values.
        init_std: of fresh values; the layer's own initialisation if none is given, scaled up for the weights it lacks.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> lb.bayesianize_(model, lb.Rigl(density=0.1)).parameters_after  # 740 weights, 110 biases
    850
    """

    summary: ClassVar[str] = "no uncertainty: sparse deterministic training, to compare with"
    random: ClassVar[bool] = False

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A FixedLayer whose weight is a SparsePoint."""
        from ...layers.fixed import FixedLayer
        from ...posteriors.sparse import SparsePoint

        weight = module._parameters["weight"]
        assert weight is not None
        if id(weight) not in memo:
            memo[id(weight)] = SparsePoint(*self.start(module, self.count(weight, memo)), weight.shape)
        layer = FixedLayer(module, {"weight": memo[id(weight)]}, {})
        layer.__dict__["subspace"] = self
        return layer

    def keep_scores(self, q: Sparse) -> Tensor:
        """|w|."""
        return q.loc.detach().abs()

    def newcomers(self, q: Sparse, survivors: Tensor) -> dict[str, Tensor | float]:
        """Zero."""
        return {"loc": 0.0}
