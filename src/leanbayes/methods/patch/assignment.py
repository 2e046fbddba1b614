"""Assignments of components to the elements of a tensor: the random sites of mixtures, drawn or balanced over samples.

Z ~ Categorical(p)                                             (ensemble model patching, equations 1, 4 and 5)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...sampling import Site, context, independent, mix
from .config import TOLERANCE, check_probabilities

_MOST_ORDERS = 720  # permutations of up to six elements are drawn from a table
_LAID_OUT = 2**16  # indices that are laid out at once, unless a block has more


class Assignment(Site):
    """A random site: independent indices with probabilities p.

    shape: of the indices, broadcast to the tensor: () for one index in all, the tensor's own for one per element.
    probabilities: p, one for each component.
    held: whether one draw holds for a whole pass, through all layers that share it; see `begin`.
    learned: whether p = softmax(logits) is learned; see `leanbayes.methods.patch.mixing`.
    folds: set if samples with different components can be computed as one larger batch (norm layers).

    >>> _ = torch.manual_seed(0)
    >>> Assignment((4,), (0.5, 0.5)).noise().shape
    torch.Size([4])
    """

    logits: nn.Parameter | None

    def __init__(
        self, shape: tuple[int, ...], probabilities: tuple[float, ...], *, held: bool = False, learned: bool = False
    ) -> None:
        super().__init__()
        check_probabilities("probabilities", probabilities)
        self.shape, self.held = tuple(shape), held
        self.given = tuple(float(p) for p in probabilities)
        self.register_parameter("logits", nn.Parameter(torch.tensor(self.given).log()) if learned else None)
        self.current: Tensor | None = None
        self.inside = False
        self.drawn: list[Tensor] | None = None
        self._last: tuple[tuple[Any, ...], Tensor] | None = None
        self.device = torch.device("cpu")

    @property
    def probabilities(self) -> tuple[float, ...]:
        """p, one for each component."""
        if self.logits is None:
            return self.given
        return tuple(self.logits.detach().double().softmax(0).tolist())

    @property
    def components(self) -> int:
        """K."""
        return len(self.given)

    @property
    def uniform(self) -> bool:
        """Whether all components have the same fixed probability."""
        return self.logits is None and max(self.given) - min(self.given) < TOLERANCE

    def weights(self) -> Tensor:
        """p as a tensor, (K,), differentiable if it is learned (otherwise on the CPU)."""
        if self.logits is None:
            return torch.tensor(self.given, dtype=torch.float64)
        return self.logits.softmax(0)

    def divergence(self) -> Tensor:
        """KL(Categorical(p) || uniform), summed over the indices: log K less the entropy, for each.

        If components do not overlap, the KL of a mixture is the mean of its components' less the entropy.
        """
        p = self.weights()
        return max(1, math.prod(self.shape)) * (torch.special.entr(p).sum().neg() + math.log(self.components))

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Indices of `shape`; those of the pass if they are held."""
        if generator is None and self.current is not None and (self.inside or _in_backward()):
            return self.current
        device = self.device if generator is None else generator.device
        if self.uniform:
            index = torch.randint(self.components, self.shape, generator=generator, device=device)
        else:
            index = self._chosen(torch.rand(self.shape, generator=generator, device=device))
        if generator is None and self.drawn is not None and not _in_backward():
            self.drawn.append(index)
        return index

    @property
    def block(self) -> int:
        """The number of samples that are balanced together."""
        return self.components * (1 if self.uniform else 4)

    def laid_out(self, seed: int, number: int, samples: Sequence[int]) -> Tensor:
        """Indices for several samples, (samples, *shape), balanced as in `BalancedAssignment`.

        number: of the site in its model; sites with the same number get the same layout.
        """
        block, p = self.block, self.probabilities
        size = block * max(1, _LAID_OUT // (block * max(1, math.prod(self.shape))))
        parts = []
        for span, some in itertools.groupby(samples, lambda sample: sample // size):
            key = (seed, number, span, p)
            if self._last is None or self._last[0] != key:
                self._last = (key, self._layout(mix(seed, number, span), size // block))
            parts.append(self._last[1][[sample % size for sample in some]])
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).long().to(self.device)

    def _layout(self, seed: int, blocks: int) -> Tensor:
        """The indices of some blocks (samples, *shape), drawn on the CPU so that a seed gives the same everywhere."""
        generator = torch.Generator().manual_seed(seed)
        order = random_orders((blocks, *self.shape), self.block, generator)
        if not self.uniform:
            u = torch.rand(order.shape, generator=generator)
            order = self._chosen((order + u) / self.block).to(torch.int16)
        return order.movedim(-1, 1).reshape(blocks * self.block, *self.shape)

    def of_samples(self, seed: int, number: int, samples: Sequence[int], balanced: bool | None = None) -> Tensor:
        """Indices for several samples, balanced or drawn; ``balanced=None`` for the default of the class."""
        if self.is_laid_out if balanced is None else balanced:
            return self.laid_out(seed, number, samples)
        return torch.stack([independent(self, seed, number, sample) for sample in samples])

    def cycle(self, balanced: bool | None = None, alone: bool = True) -> int | None:
        """K if one index selects the components of the whole model in turn, else None."""
        goes_round = self.is_laid_out if balanced is None else balanced
        return self.components if alone and self.held and self.uniform and goes_round else None

    def states(self) -> tuple[int, float]:
        """The indices, of K values each."""
        return math.prod(self.shape), math.prod(self.shape) * math.log10(self.components)

    @property
    def single_index(self) -> bool:  # type: ignore[override]
        """Whether there is a single index."""
        return not self.shape

    def begin(self, model: nn.Module, inputs: Any) -> None:
        """Called before each pass of a model whose layers share the draw: draws, unless the context has a draw."""
        self.current = None
        if not context.mean_only and not (context.draws is not None and id(self) in context.draws):
            self.current = self.noise()
        self.inside = True

    def end(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        """Called after the pass, also on error; the draw is kept, since the backward pass may recompute."""
        self.inside = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to the device of the model."""
        self.device = fn(torch.empty(0, device=self.device)).device
        self.current = None
        return super()._apply(fn, recurse)

    def _chosen(self, u: Tensor) -> Tensor:
        """The component whose interval of [0, 1) contains u."""
        if self.logits is not None:  # without waiting for the device
            edges = self.logits.detach().double().softmax(0).cumsum(0)[:-1]
            return (u.unsqueeze(-1) >= edges.to(u.device)).sum(-1)
        index = torch.zeros(u.shape, dtype=torch.long, device=u.device)
        edge = 0.0
        for p in self.given[:-1]:
            edge += p
            index = index + (u >= edge)
        return index

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "current": None, "inside": False, "drawn": None, "_last": None}

    def extra_repr(self) -> str:
        """The shape and the number of components."""
        return f"shape={self.shape}, components={self.components}"


class BalancedAssignment(Assignment):
    """Assignments balanced over the samples of `predict`, so that every index takes every component equally often.

    A Latin hypercube: in each block of K samples every index goes through the components in a random order, so that
    each sample is distributed as an independent draw (averages are unbiased), and the average over a block has no
    variance from any single index. If components are not equally likely, a block has 4 K samples, one from each of 4 K
    equal intervals of [0, 1), and component k occurs within one of 4 K p_k times.

    A function of (seed, number, sample). In training the draws are independent.

    >>> site = BalancedAssignment((), (0.25,) * 4)
    >>> sorted(int(site.of_sample(7, 0, s)) for s in range(4))
    [0, 1, 2, 3]
    """

    is_laid_out = True

    def of_sample(self, seed: int, number: int, sample: int) -> Tensor:
        """The indices of one sample."""
        return self.laid_out(seed, number, [sample])[0]


def random_orders(shape: tuple[int, ...], count: int, generator: torch.Generator | None = None) -> Tensor:
    """Uniform random permutations of 0 ... count - 1 along a last dimension, (*shape, count).

    >>> random_orders((2,), 3, torch.Generator().manual_seed(0)).sort(-1).values.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    if math.factorial(count) > _MOST_ORDERS:
        return torch.rand((*shape, count), generator=generator).argsort(-1).to(torch.int16)
    every = torch.tensor(list(itertools.permutations(range(count))), dtype=torch.int16)
    return every[torch.randint(len(every), shape, generator=generator)]


def _in_backward() -> bool:
    """Whether a pass is recomputed in a backward pass (checkpointing)."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
