"""Mixtures: K values of one tensor, and an assignment of its elements to them.

    W = sum_k 1[Z = k] * (M_k + sigma * eps_k)                     (ensemble model patching, equation 1)

| member of the family | components | assignment Z |
| --- | --- | --- |
| EMP | K learned | one index for a layer |
| ECMP | K learned | one index for every element |
| explicit ensemble | K learned | one index for all layers |
| dropout | zero and W / (1 - rate) | one index for every input |
| DropConnect | zero and W / (1 - rate) | one index for every element |

sigma is the machine epsilon of the paper: densities use it, a draw leaves it out and is one gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from ...checks import number
from ...errors import ConfigError
from ...kl import register_kl
from ...posteriors.base import Posterior, as_parameter, check_floating, exchanged, padded_shape
from ...priors import Normal
from ...sampling import draw
from .assignment import Assignment, BalancedAssignment

SIGMA = 1e-6


class Mixture(Posterior):
    """K values of a tensor in one parameter, and an assignment of its elements to them (equation 1).

    loc: the learned centres, (K, *shape); one tensor, since DistributedDataParallel stops at parameters that a pass
        does not use.
    assignment: the random site; several mixtures may share it.
    zero: whether component 0 is the constant zero and loc holds the others, which are divided by 1 - p_0, so that the
        mean of one component and zero is loc, as in torch's dropout.

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
        count = assignment.components
        if loc.ndim < 1 or loc.shape[0] + zero != count:
            raise ConfigError(
                f"loc: expected one centre for each of {count} probabilities{', zero aside' if zero else ''}, "
                f"received shape {tuple(loc.shape)}"
            )
        if padded_shape(assignment.shape, loc.shape[1:]) is None:
            raise ConfigError(
                f"assignment: expected a shape that broadcasts to {tuple(loc.shape[1:])}, received {assignment.shape}"
            )
        self.loc = as_parameter(loc)
        self.assignment = assignment.to(loc.device)
        self.zero = zero

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Memory formats are those of one weight, whose components follow each other as outputs do."""

        def as_weight(t: Tensor) -> Tensor:
            return fn(t.flatten(0, 1)).unflatten(0, t.shape[:2]) if t.ndim == 5 else fn(t)

        return super()._apply(as_weight, recurse)

    @classmethod
    def from_tensor(cls, w: Tensor, assignment: Assignment, others: Tensor) -> Self:
        """A mixture whose first component is w; others: the other components, (K - 1, *shape)."""
        return cls(nn.Parameter(torch.cat([w.detach().unsqueeze(0), others.detach()]), w.requires_grad), assignment)

    @property
    def like(self) -> Tensor:
        return self.loc[0]

    @property
    def components(self) -> int:
        """K, the zero included."""
        return self.assignment.components

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

    def scale_noise_(self, factor: float) -> Callable[[], None] | None:
        """Scale the distance of the components from their mean; None if one of them is the constant zero."""
        if self.zero:
            return None
        mean = (self.component_weights() * self.loc).sum(0).detach()
        return exchanged({self.loc: mean + factor * (self.loc.detach() - mean)})

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The indices of the assignment, from the sampling context if it has them."""
        return draw(self.assignment) if generator is None else self.assignment.noise(generator)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """The components selected by the indices; only these get a gradient."""
        index = draw(self.assignment) if noise is None else noise
        centres = self.centres
        if index.ndim == 0:
            return centres.index_select(0, index.reshape(1)).squeeze(0)
        return centres.gather(0, index.expand(self.shape).unsqueeze(0)).squeeze(0)

    def log_prob(self, w: Tensor) -> Tensor:
        """log q(w), in which elements with a common index have equal shares of their joint density.

        q(w) = sum_k p_k prod_e N(w_e; M_ke, sigma^2) for each group of elements with a common index.
        """
        z = (w - self.centres) / SIGMA
        each = -0.5 * z * z - (math.log(SIGMA) + 0.5 * math.log(2 * math.pi))
        group = padded_shape(self.assignment.shape, self.shape)
        assert group is not None
        size = math.prod(self.shape) // max(math.prod(group), 1)
        joint = torch.logsumexp(each.sum_to_size(self.components, *group) + self.component_weights().log(), 0)
        return self.masked((joint / size).expand(self.shape))

    def active_parameters(self) -> int:
        """All centres of the weights that are not pruned."""
        return self.loc.numel() if self.keep is None else self.loc.shape[0] * int(self.keep.sum())

    def component_weights(self) -> Tensor:
        """p, in a shape that broadcasts to the centres."""
        p = self.assignment.weights().to(dtype=self.dtype, device=self.device)
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


def drop_connect(w: Tensor, rate: float, *, balanced: bool = True) -> Mixture:
    """DropConnect as a mixture: every weight by itself is zero or w / (1 - rate) (table 2).

    >>> drop_connect(torch.ones(2), 0.75).sample(torch.tensor([0, 1])).detach()
    tensor([0., 4.])
    """
    kind = BalancedAssignment if balanced else Assignment
    return _dropped(w, kind(tuple(w.shape), _rate(rate)))


def _dropped(w: Tensor, assignment: Assignment) -> Mixture:
    return Mixture(nn.Parameter(w.detach().clone().unsqueeze(0), w.requires_grad), assignment, zero=True)


def _rate(rate: float) -> tuple[float, float]:
    rate = number("rate", rate, above=0, below=1)
    return (rate, 1.0 - rate)


@register_kl(Mixture, Normal, kind="up to a constant", name="equation 6")
def _of_centres(q: Mixture, p: Normal, _: int) -> Tensor:
    """sum_k p_k (M_k - mean)^2 / (2 std^2), elementwise: the part of the bound that depends on the centres."""
    return (q.component_weights() * (q.centres - p.mean).square()).sum(0) / (2 * p.std**2)


@register_kl(Mixture, Normal, kind="approximation", name="bound")
def _of_components(q: Mixture, p: Normal, _: int) -> Tensor:
    """sum_k p_k KL(N(M_k, sigma^2) || p), elementwise, with all constants: an upper bound of the KL.

    The entropy of a mixture is at least the mean of its components' and at most H(p) above it (equation 7 of the paper
    has it the wrong way round), so the KL lies between this sum less H(p) for each index, if components do not overlap,
    and this sum.
    """
    ratio = SIGMA / p.std
    return _of_centres(q, p, 1) + 0.5 * (ratio * ratio - 1) - math.log(ratio)


@register_kl(Mixture, Normal, kind="monte carlo")
def _of_draws(q: Mixture, p: Normal, samples: int) -> Tensor:
    """E_q[log q - log p] with sigma in it: the sum over components is exact, and eps is drawn."""
    weights, total = q.component_weights(), torch.zeros_like(q.like)
    for _ in range(samples):
        for k, centre in enumerate(q.centres):
            # in double precision, where sigma * eps is not lost beside a centre of order one
            w = centre.double() + SIGMA * torch.randn_like(centre, dtype=torch.float64)
            total = total + weights[k] * (q.log_prob(w) - p.log_prob(w)).to(total.dtype)
    return total / samples
