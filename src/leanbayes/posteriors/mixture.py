"""The mixture that ensembles are: K values of one tensor and a rule that says which element takes which.

    W = sum_k 1[Z = k] * (M_k + sigma * eps_k)                     (ensemble model patching, equation 1)

| member of the family | components | assignment Z |
| --- | --- | --- |
| EMP | K learned | one index for a layer |
| ECMP | K learned | one index for every element |
| explicit ensemble | K learned | one index for all layers |
| dropout | zero and W / (1 - rate) | one index for every input |
| DropConnect | zero and W / (1 - rate) | one index for every element |

sigma is the machine epsilon of the paper: densities know it, a draw leaves it out and is one gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..sampling import context, draw, mix
from .base import Posterior, as_parameter, check_floating

SIGMA = 1e-6
_TOLERANCE = 1e-6


class Assignment(nn.Module):
    """Which component each part of a tensor takes: Z ~ Categorical(p), independent draws; a random site.

    shape: of the indices, broadcast to the tensor: () for one index in all, the tensor's own for one an element.
    probabilities: p, one for each component.
    number: tells the sites of a model apart; whatever has the same number is laid out alike.
    held: whether one draw holds for a whole pass, through all layers that share this; see `begin`.

    >>> _ = torch.manual_seed(0)
    >>> Assignment((4,), (0.5, 0.5)).noise().shape
    torch.Size([4])
    """

    is_site = True

    def __init__(
        self, shape: tuple[int, ...], probabilities: tuple[float, ...], number: int = 0, *, held: bool = False
    ) -> None:
        super().__init__()
        check_probabilities("probabilities", probabilities)
        self.shape, self.probabilities, self.number, self.held = tuple(shape), tuple(probabilities), number, held
        self.current: Tensor | None = None
        self.device = torch.device("cpu")

    @property
    def uniform(self) -> bool:
        """Whether all components are as likely."""
        return max(self.probabilities) - min(self.probabilities) < _TOLERANCE

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Indices of `shape`; those of the pass where they are held."""
        if generator is None and self.current is not None:
            return self.current
        device = self.device if generator is None else generator.device
        if self.uniform:
            return torch.randint(len(self.probabilities), self.shape, generator=generator, device=device)
        return self._chosen(torch.rand(self.shape, generator=generator, device=device))

    def begin(self, model: nn.Module, inputs: Any) -> None:
        """Before every pass of a model whose layers share the draw: a new one, unless the context has it."""
        self.current = None
        if not context.mean_only and not (context.draws is not None and id(self) in context.draws):
            self.current = self.noise()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Indices are drawn where the model is moved to: it has no tensor that would show."""
        self.device = fn(torch.empty(0, device=self.device)).device
        self.current = None
        return super()._apply(fn, recurse)

    def _chosen(self, u: Tensor) -> Tensor:
        """The component whose stretch of [0, 1) holds u."""
        index = torch.zeros(u.shape, dtype=torch.long, device=u.device)
        edge = 0.0
        for p in self.probabilities[:-1]:
            edge += p
            index = index + (u >= edge)
        return index

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "current": None}

    def extra_repr(self) -> str:
        """The shape and the number of components."""
        return f"shape={self.shape}, components={len(self.probabilities)}"


class BalancedAssignment(Assignment):
    """Assignments laid out over the samples of `predict`, so that every index takes every component equally often.

    A Latin hypercube: in each block of K samples every index goes through the components in a random order of its own,
    so that a sample by itself is distributed as an independent draw (averages stay unbiased), while the average over a
    block has no variance from any single index. Where components are not as likely, a block has 4 K samples, one from
    each of 4 K equal stretches of [0, 1), and component k comes within one of 4 K p_k times.

    A function of (seed, number, sample). In training the draws are independent.

    >>> site = BalancedAssignment((), (0.25,) * 4)
    >>> sorted(int(site.of_sample(7, s)) for s in range(4))
    [0, 1, 2, 3]
    """

    def __init__(
        self, shape: tuple[int, ...], probabilities: tuple[float, ...], number: int = 0, *, held: bool = False
    ) -> None:
        super().__init__(shape, probabilities, number, held=held)
        if held and self.uniform:
            self.period = self.block  # whole networks: after one round `predict` has asked them all
        self._last: tuple[tuple[int, int], Tensor] | None = None

    @property
    def block(self) -> int:
        """How many samples are balanced together."""
        return len(self.probabilities) * (1 if self.uniform else 4)

    def of_sample(self, seed: int, sample: int) -> Tensor:
        """The indices of one sample."""
        key = (seed, sample // self.block)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._laid_out(*key))
        return self._last[1][sample % self.block].long().to(self.device)

    def _laid_out(self, seed: int, block: int) -> Tensor:
        """The indices of a block of samples (block, *shape), drawn on the CPU: a seed means the same everywhere."""
        generator = torch.Generator().manual_seed(mix(seed, self.number, block))
        order = torch.rand((self.block, *self.shape), generator=generator).argsort(0)
        if not self.uniform:
            order = self._chosen((order + torch.rand(order.shape, generator=generator)) / self.block)
        return order.to(torch.int16)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": None}


class Mixture(Posterior):
    """K values of a tensor in one parameter, and an assignment of its elements to them (equation 1).

    loc: the centres that are learned, (K, *shape); one tensor, since a parameter that a pass does not use would stop
        DistributedDataParallel.
    assignment: the random site; several mixtures may share it.
    zero: whether component 0 is the constant zero and loc holds the others. These are then divided by 1 - p_0, so that
        with one of them the mean is loc itself, as in torch's dropout.

    >>> q = Mixture(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), Assignment((2,), (0.5, 0.5)))
    >>> q.mean.detach(), q.std.detach()
    (tensor([2., 4.]), tensor([1., 2.]))
    >>> q.sample(torch.tensor([0, 1])).detach()
    tensor([1., 6.])
    """

    is_site = False  # its assignment is

    def __init__(self, loc: Tensor, assignment: Assignment, *, zero: bool = False) -> None:
        super().__init__()
        check_floating(loc)
        count = len(assignment.probabilities)
        if loc.ndim < 1 or loc.shape[0] + zero != count:
            raise ConfigError(
                f"loc: expected one centre for each of {count} probabilities{', zero aside' if zero else ''}, "
                f"received shape {tuple(loc.shape)}"
            )
        if _broadcast(assignment.shape, tuple(loc.shape[1:])) is None:
            raise ConfigError(
                f"assignment: expected a shape that broadcasts to {tuple(loc.shape[1:])}, received {assignment.shape}"
            )
        self.loc = as_parameter(loc)
        self.assignment = assignment.to(loc.device)
        self.zero = zero

    @classmethod
    def from_tensor(cls, w: Tensor, assignment: Assignment, others: Tensor) -> Self:
        """The first component is a pretrained tensor, the others are given, (K - 1, *shape); its flag is kept."""
        return cls(nn.Parameter(torch.cat([w.detach().unsqueeze(0), others.detach()]), w.requires_grad), assignment)

    @property
    def like(self) -> Tensor:
        return self.loc[0]

    @property
    def components(self) -> int:
        """K, the zero included."""
        return len(self.assignment.probabilities)

    @property
    def centres(self) -> Tensor:
        """M, (K, *shape)."""
        if not self.zero:
            return self.masked(self.loc)
        scaled = self.loc / (1 - self.assignment.probabilities[0])
        return self.masked(torch.cat([torch.zeros_like(scaled[:1]), scaled]))

    @property
    def mean(self) -> Tensor:
        """sum_k p_k M_k."""
        return (self.component_weights() * self.centres).sum(0)

    @property
    def std(self) -> Tensor:
        """The square root of sum_k p_k (M_k - mean)^2."""
        return self.variance.sqrt()

    @property
    def variance(self) -> Tensor:
        return (self.component_weights() * (self.centres - self.mean).square()).sum(0)

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The indices of the assignment: those of the sampling context where it has them."""
        return draw(self.assignment) if generator is None else self.assignment.noise(generator)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """The components that the indices name; the gradient reaches those and no others."""
        index = draw(self.assignment) if noise is None else noise
        centres = self.centres
        if index.ndim == 0:
            return centres.index_select(0, index.reshape(1)).squeeze(0)
        return centres.gather(0, index.expand(self.shape).unsqueeze(0)).squeeze(0)

    def log_prob(self, w: Tensor) -> Tensor:
        """log q(w): of a group of elements that one index rules, each has an equal share of its joint density.

        q(w) = sum_k p_k prod_e N(w_e; M_ke, sigma^2) for each group; where every element has an index, its own density.
        """
        z = (w - self.centres) / SIGMA
        each = -0.5 * z * z - (math.log(SIGMA) + 0.5 * math.log(2 * math.pi))
        group = _broadcast(self.assignment.shape, tuple(self.shape))
        assert group is not None
        size = math.prod(self.shape) // max(math.prod(group), 1)
        joint = torch.logsumexp(each.sum_to_size(self.components, *group) + self.component_weights().log(), 0)
        return self.masked((joint / size).expand(self.shape))

    def active_parameters(self) -> int:
        """Every weight not pruned has all its centres."""
        return self.loc.numel() if self.keep is None else self.loc.shape[0] * int(self.keep.sum())

    def component_weights(self) -> Tensor:
        p = torch.tensor(self.assignment.probabilities, dtype=self.dtype, device=self.device)
        return p.reshape(-1, *(1,) * (self.loc.ndim - 1))


def dropout(w: Tensor, rate: float, dim: int = 1) -> Mixture:
    """Dropout as a mixture: column j of a weight (index j of ``dim``) is zero or w / (1 - rate) as a whole (table 2).

    >>> q = dropout(torch.ones(2, 3), 0.5)
    >>> q.sample(torch.tensor([[0, 1, 0]])).detach()
    tensor([[0., 2., 0.],
            [0., 2., 0.]])
    """
    shape = tuple(n if d == dim else 1 for d, n in enumerate(w.shape))
    return _dropped(w, BalancedAssignment(shape, _rate(rate)))


def drop_connect(w: Tensor, rate: float, number: int = 0, *, balanced: bool = True) -> Mixture:
    """DropConnect as a mixture: every weight by itself is zero or w / (1 - rate) (table 2).

    >>> drop_connect(torch.ones(2), 0.75).sample(torch.tensor([0, 1])).detach()
    tensor([0., 4.])
    """
    kind = BalancedAssignment if balanced else Assignment
    return _dropped(w, kind(tuple(w.shape), _rate(rate), number))


def _dropped(w: Tensor, assignment: Assignment) -> Mixture:
    return Mixture(nn.Parameter(w.detach().clone().unsqueeze(0), w.requires_grad), assignment, zero=True)


def _rate(rate: float) -> tuple[float, float]:
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1:
        raise ConfigError(f"rate: expected a probability above 0 and below 1, received {rate!r}")
    return (float(rate), 1.0 - rate)


def check_probabilities(where: str, probabilities: tuple[float, ...]) -> None:
    """Two or more numbers above 0 that sum to one."""
    numbers = all(isinstance(p, (int, float)) and not isinstance(p, bool) for p in probabilities)
    if len(probabilities) < 2 or not numbers or not all(p > 0 for p in probabilities):
        raise ConfigError(f"{where}: expected two or more numbers above 0, received {probabilities}")
    if not abs(math.fsum(probabilities) - 1) < _TOLERANCE:
        raise ConfigError(
            f"{where}: expected numbers that sum to 1, received {probabilities}, whose sum is "
            f"{math.fsum(probabilities):.6g}; divide them by it"
        )


def _broadcast(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """shape with as many dimensions as target, or None where it does not broadcast to it."""
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    fits = len(padded) == len(target) and all(a in (1, b) for a, b in zip(padded, target, strict=True))
    return padded if fits else None
