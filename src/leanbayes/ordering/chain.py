"""The chain of Bernoulli variables: a distribution over ordered masks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints, register_kl

from .. import checks
from ..errors import ConfigError
from .tails import (
    check_log_tails,
    check_nodes,
    keep_logits,
    log_keep_from_logits,
    log_of_tails,
    log_tails,
    ordered_masks,
    uniform_logits,
)


class OrderedMask(constraints.Constraint):
    """Vectors of ones, at least one, followed by zeros."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Any) -> Any:
        """Whether every row is an ordered mask; the shape of the batch.

        >>> OrderedMask().check(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]))
        tensor([ True, False])
        """
        binary = ((value == 0) | (value == 1)).all(-1)
        return binary & (value[..., 0] == 1) & (value.diff(dim=-1) <= 0).all(-1)


class BernoulliChain(Distribution):
    """z_1 = 1 and z_j | z_{j-1} = 1 ~ Bernoulli(mu_j), z_j = 0 after the first 0 (equation 1).

    p(z = v_j) = (1 - mu_{j+1}) prod_{k <= j} mu_k for the mask v_j of j ones and K - j zeros, mu_{K+1} = 0 (A9).

    probs or logits: of mu_2..mu_K, of shape (..., K - 1). The first node has none: it is always kept.

    >>> chain = BernoulliChain(probs=torch.tensor([0.5, 0.5]))
    >>> chain.tails, chain.keep
    (tensor([0.5000, 0.2500, 0.2500]), tensor([1.0000, 0.5000, 0.2500]))
    >>> chain.log_prob(torch.tensor([1.0, 1.0, 0.0])).exp()
    tensor(0.2500)
    """

    arg_constraints = {"logits": constraints.real_vector}
    support = OrderedMask()
    has_rsample = True
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        if (probs is None) == (logits is None):
            raise ConfigError(
                "BernoulliChain: expected either probs or logits, received " + ("none", "both")[logits is not None]
            )
        name, given = ("probs", probs) if logits is None else ("logits", logits)
        if not isinstance(given, Tensor) or not given.is_floating_point() or given.ndim == 0:
            raise ConfigError(
                f"{name}: expected a floating-point tensor (..., nodes - 1), received {checks.short(given)}"
            )
        checked = validate_args is not False  # not torch's default: torch.compile turns that off for the whole process
        if checked:
            ok = ~given.isnan() if logits is not None else (given >= 0) & (given <= 1)
            if not bool(ok.all()):
                wanted = "numbers" if logits is not None else "probabilities in [0, 1]"
                raise ConfigError(f"{name}: expected {wanted}, received {given}")
        self.logits: Tensor = given if logits is not None else torch.logit(given)
        shape = given.shape
        super().__init__(shape[:-1], Size([shape[-1] + 1]), validate_args=checked)

    @classmethod
    def from_tails(cls, beta: Tensor | None = None, *, log_beta: Tensor | None = None) -> BernoulliChain:
        """The chain whose widths have the probabilities beta, or exp(log_beta); (..., K).

        >>> BernoulliChain.from_tails(torch.tensor([0.2, 0.3, 0.5])).tails
        tensor([0.2000, 0.3000, 0.5000])
        """
        if (beta is None) == (log_beta is None):
            raise ConfigError("from_tails: expected either beta or log_beta")
        if log_beta is None:
            assert beta is not None
            log_beta = log_of_tails(beta)
        else:
            check_log_tails(log_beta)
        return cls(logits=keep_logits(log_beta))

    @classmethod
    def uniform(cls, nodes: int) -> BernoulliChain:
        """Every width equally likely.

        >>> BernoulliChain.uniform(4).tails
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
        """
        return cls(logits=uniform_logits(nodes))

    @classmethod
    def constant(cls, nodes: int, prob: float) -> BernoulliChain:
        """The same conditional keep probability at every node: truncated geometric tails (the authors' prior: 0.95).

        >>> BernoulliChain.constant(3, 0.95).keep
        tensor([1.0000, 0.9500, 0.9025])
        """
        check_nodes(nodes)
        return cls(probs=torch.full((nodes - 1,), float(prob)))

    @property
    def log_tails(self) -> Tensor:
        """log beta_j = log P(exactly the first j nodes are kept); (..., K)."""
        return log_tails(self.logits)

    @property
    def tails(self) -> Tensor:
        """beta_j = P(exactly the first j nodes are kept); (..., K)."""
        return self.log_tails.exp()

    @property
    def log_keep(self) -> Tensor:
        """log P(z_j = 1); (..., K)."""
        return log_keep_from_logits(self.logits)

    @property
    def keep(self) -> Tensor:
        """P(z_j = 1) = prod_{k <= j} mu_k (equation 2); (..., K)."""
        return self.log_keep.exp()

    @property
    def mean(self) -> Tensor:
        """E z, which is `keep`."""
        return self.keep

    @property
    def variance(self) -> Tensor:
        """The variance of each node: keep (1 - keep)."""
        return self.keep * -torch.expm1(self.log_keep)

    @property
    def mode(self) -> Tensor:
        """The most likely mask; the narrowest of equals."""
        return ordered_masks(self.event_shape[0]).to(self.logits)[self.log_tails.argmax(-1)]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Masks of shape (sample_shape, batch, K): the cumulative product of independent Bernoulli draws.

        No gradient reaches the parameters; `rsample` and `Downhill.from_chain` have one.
        """
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            kept = torch.rand((*shape[:-1], shape[-1] - 1), dtype=self.logits.dtype, device=self.logits.device)
            kept = (kept < self.logits.sigmoid()).to(self.logits.dtype)
            return torch.cat((kept.new_ones((*shape[:-1], 1)), kept.cumprod(-1)), -1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Masks as from `sample` with the gradient of their mean: right for functions linear in z, biased for others.

        That of `Downhill.from_chain(chain, temperature).rsample(hard=True)` sees which mask was drawn.
        """
        keep = self.keep
        return self.sample(sample_shape) + (keep - keep.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(z) of masks (..., K); -inf for masks that are not ordered, if arguments are not validated."""
        if self._validate_args:
            self._validate_sample(value)
        ordered = self.support.check(value)
        last = torch.where(ordered, value.sum(-1), 1).long() - 1
        table = self.log_tails.expand(torch.broadcast_shapes(value.shape, self.log_tails.shape))
        found = table.gather(-1, last.expand(table.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return torch.where(ordered, found, -math.inf)

    def entropy(self) -> Tensor:
        """-sum_j beta_j log beta_j, in nats; the shape of the batch."""
        log_beta = self.log_tails
        return -expected_under(log_beta, log_beta)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """The K ordered masks, (K, batch, K)."""
        nodes = self.event_shape[0]
        masks = ordered_masks(nodes).to(self.logits).reshape((nodes,) + (1,) * len(self.batch_shape) + (nodes,))
        return masks.expand((nodes, *self.batch_shape, nodes)) if expand else masks

    def expand(self, batch_shape: Any, _instance: Any = None) -> BernoulliChain:
        """The same chain over a larger batch."""
        return BernoulliChain(
            logits=self.logits.expand(Size(batch_shape) + self.logits.shape[-1:]), validate_args=False
        )


def expected_under(log_beta: Tensor, values: Tensor) -> Tensor:
    """sum_j beta_j values_j, in which a width of probability 0 adds 0, also to the gradient.

    >>> expected_under(torch.tensor([1.0, 0.0]).log(), torch.tensor([3.0, torch.inf]))
    tensor(3.)
    """
    beta = log_beta.exp()
    return torch.where(beta > 0, beta * torch.where(beta > 0, values, 0.0), 0.0).sum(-1)


def tail_kl(log_beta: Tensor, log_prior: Tensor) -> Tensor:
    """Phi_1 = sum_j beta_j (log beta_j - log p(v_j)), the KL between two distributions of the tail (A7, 11 corrected).

    log_beta, log_prior: (..., K), logarithms of tail probabilities. The shape of the batch.

    >>> tail_kl(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log())
    tensor(0.1438)
    """
    return expected_under(log_beta, log_beta - log_prior)


@register_kl(BernoulliChain, BernoulliChain)
def _chain_chain(q: BernoulliChain, p: BernoulliChain) -> Tensor:
    return tail_kl(q.log_tails, p.log_tails)
