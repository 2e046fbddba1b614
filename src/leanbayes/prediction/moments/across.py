"""How the channels of an image vary together: what a last linear layer would miss if it took them for independent.

The filters of a layer read the same inputs, so that channels share their uncertainty, and so do the two terms of a
residual sum. To carry the covariance of channels, a matrix for every datum, would cost more than the network. But a
last layer of K outputs asks for K sums over channels alone. What these vary by is found backwards, as gradients are:
every `Node` says which variance is new in it and what it reads, and weights of the K sums go from each to those before
it, matrices (K, channels) for every datum.

All of it is about averages of channels over positions, and layers are taken for linear: a rectifier is its mean
derivative, by channel, and what is left of its variance is new.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

JOINT = 128
"""The most outputs of a layer whose covariance is computed; more of them are taken for independent."""
_numbers = count()
Map = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Node:
    """fresh: computes the variance that is new in the channels' averages, (batch, channels), independent of all others.

    reads: the nodes that it is a linear function of, each with the map of weights (batch, K, channels) to weights of
    its channels.
    """

    fresh: Callable[[], Tensor] | None
    reads: tuple[tuple[Node, Map], ...] = ()
    number: int = field(default_factory=lambda: next(_numbers))


def covariance(node: Node, weights: Tensor) -> Tensor:
    """Of K sums over the channels of a node, weights (batch, K, channels): (batch, K, K)."""
    waiting, known = [(-node.number, node)], {node.number: weights}
    found = weights.new_zeros(weights.shape[0], weights.shape[1], weights.shape[1])
    while waiting:  # the last ones first, so that all who read a node have been there
        _, one = heapq.heappop(waiting)
        own = known.pop(one.number)
        if one.fresh is not None:
            found += torch.matmul(own * one.fresh().clamp_min(0).unsqueeze(1), own.mT)
        for other, through in one.reads:
            if other.number in known:
                known[other.number] = known[other.number] + through(own)
            else:
                known[other.number] = through(own)
                heapq.heappush(waiting, (-other.number, other))
    return found


def scaled(node: Node | None, factor: Tensor | None) -> Node | None:
    """Behind a factor by channel, (channels,) or (batch, channels)."""
    if node is None or factor is None:
        return node
    return Node(None, ((node, lambda weights: weights * factor.unsqueeze(-2)),))


def added(*terms: Node | None) -> Node | None:
    """A sum of which all terms are known."""
    there = tuple((one, lambda weights: weights) for one in terms if one is not None)
    return Node(None, there) if len(there) == len(terms) else None


def behind(node: Node | None, fresh: Callable[[], Tensor]) -> Node | None:
    """The same, with variance that comes to it."""
    return None if node is None else Node(fresh, ((node, lambda weights: weights),))
