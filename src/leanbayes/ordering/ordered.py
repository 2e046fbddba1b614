"""`Ordered`: the base of ordered channels and codes, with the numbers of their nodes, all and kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConversionError


class Ordered(nn.Module):
    """Nodes in an order of importance, of which the first ones are kept: groups of channels, latents, blocks.

    nodes: how many there are. name: what error messages and `leanbayes.widths` call it.
    base: how many groups the first node, which is always kept, stands for.
    width: how many nodes are kept, 0 to sample. limit: how many there are to sample from.
    rescale: whether a set width multiplies what it keeps by its keep probability (B.2). All three are host state, which
    a pass reads without waiting for a device; they are part of the state_dict.
    """

    base: int = 1
    free: bool = False
    """Where no width is set, whether only training draws one and everything else runs at full width."""

    def __init__(self, name: str, nodes: int) -> None:
        super().__init__()
        self.name, self.nodes = name, nodes
        self.width, self.limit, self.rescale = 0, nodes, False

    def tails(self) -> Tensor:
        """log beta_j, the logarithm of the probability that exactly the first j nodes are kept, (K,)."""
        raise NotImplementedError

    def fraction(self, nodes: int) -> float:
        """The part of the groups that so many nodes are, of those within the limit."""
        return (self.base + nodes - 1) / (self.base + self.limit - 1)

    def nodes_at(self, fraction: float) -> int:
        """How many nodes hold this part of the groups within the limit, rounded up; at least the first."""
        most = self.base + self.limit - 1
        return max(1, math.ceil(fraction * most - 1e-6) - self.base + 1)  # a third of 30 groups is 10, not 11

    def within_limit(self, log_beta: Tensor) -> Tensor:
        """Tail probabilities (..., K) given that no more nodes than the limit are kept."""
        if self.limit == self.nodes:
            return log_beta
        within = torch.arange(self.nodes, device=log_beta.device) < self.limit
        return torch.where(within, log_beta - log_beta[..., : self.limit].logsumexp(-1, keepdim=True), -torch.inf)

    def callbacks(self) -> list[Any]:
        """The callbacks of training, such as the schedule of a temperature; see `leanbayes.callbacks`."""
        return []

    # A pass branches on these: as buffers on a GPU, reading them would wait for the device in every layer.
    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.width, self.limit, int(self.rescale)])

    def set_extra_state(self, state: Tensor) -> None:
        width, limit, rescale = (int(value) for value in state)
        if not (0 <= width <= limit <= self.nodes and limit >= 1):
            raise ConversionError(f"'{self.name}': expected a width of at most {self.nodes} nodes, received {width}")
        self.width, self.limit, self.rescale = width, limit, bool(rescale)


def ordered(model: nn.Module) -> list[Ordered]:
    """Everything ordered in a model, each once."""
    return [module for module in model.modules() if isinstance(module, Ordered)]
