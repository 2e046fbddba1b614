"""The Downhill distribution: a relaxed ordered mask, differentiable in its tail probabilities."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Size, Tensor
from torch.distributions import Distribution, constraints, register_kl

from ..errors import ConfigError
from .chain import BernoulliChain, tail_kl
from .tails import at_most, check_log_tails, check_nodes, coarser_tails, keep_logits, log_keep, log_of_tails, stretches


def gumbel_noise(
    shape: Any,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard Gumbel noise -log E, E ~ Exponential(1): all that a draw of Downhill needs.

    One draw handed to several layers makes their widths vary together.

    >>> gumbel_noise((2, 3)).shape
    torch.Size([2, 3])
    """
    unit = torch.empty(shape, dtype=dtype, device=device).exponential_(generator=generator)
    return -unit.clamp_min(torch.finfo(unit.dtype).tiny).log()  # an exact 0 would be an infinite Gumbel


def coarser_noise(noise: Tensor, nodes: int, log_beta: Tensor | None = None) -> Tensor:
    """Standard Gumbel noise for fewer nodes from that for many, so that layers of several sizes share one draw.

    The largest g_j + log beta_j of a stretch, less the logarithm of the sum of its beta, is standard Gumbel again. Each
    node takes that of its stretch of the finer noise: where its tails are `coarser_tails` of beta, the coarse width is
    the fine one, rounded up.

    noise: (..., many). log_beta: the tails of the many nodes, (many,); uniform ones unless told. Returns (..., nodes).

    >>> coarser_noise(torch.tensor([0.0, 3.0, 1.0, 2.0]), 2) + torch.tensor(2.0).log()
    tensor([3., 2.])
    """
    check_nodes(nodes)
    many = noise.shape[-1]
    if nodes > many:
        raise ConfigError(
            f"coarser_noise: expected at most {many} nodes, as many as there is noise for, received {nodes}"
        )
    if nodes == many:
        return noise
    of = torch.arange(many, device=noise.device) * nodes // many
    largest = noise.new_full((*noise.shape[:-1], nodes), -math.inf)
    plain = largest.scatter_reduce(-1, of.expand(noise.shape), noise, "amax") - stretches(many, nodes).to(noise).log()
    if log_beta is None:
        return plain
    total = coarser_tails(log_beta, nodes)
    likely = largest.scatter_reduce(-1, of.expand(noise.shape), noise + log_beta, "amax") - total
    return torch.where(total > -math.inf, likely, plain)  # a stretch that is never drawn has no largest


def log_steps(log_beta: Tensor, temperature: float | Tensor, noise: Tensor) -> Tensor:
    """log c of a Gumbel-softmax draw, c = softmax((log beta + g) / temperature): by how much z falls after each node.

    >>> log_steps(torch.zeros(2), 0.5, torch.tensor([1.0, 0.0])).exp()
    tensor([0.8808, 0.1192])
    """
    return F.log_softmax((log_beta + noise) / temperature, -1)


def slope(log_beta: Tensor, temperature: float | Tensor, noise: Tensor, hard: bool = False) -> Tensor:
    """z_j = sum_{k >= j} c_k, c = softmax((log beta + g) / temperature): property 1, with c_0 := 0 as it has to be.

    log_beta: (..., K). noise: standard Gumbel, of a shape that broadcasts with it.
    hard: the ordered mask of the largest c, whose probabilities are beta at any temperature; the gradient is that of
        the soft sample (straight-through).

    >>> g = torch.tensor([0.0, 1.0, 0.0])
    >>> slope(torch.zeros(3), 1.0, g), slope(torch.zeros(3), 1.0, g, hard=True)
    (tensor([1.0000, 0.7881, 0.2119]), tensor([1., 1., 0.]))
    """
    height = log_beta + noise
    steps = F.softmax(height / temperature, -1)
    # from the far end: small z keep their digits, and the order survives rounding; the first is 1 by definition
    soft = F.pad(at_most(steps[..., 1:].flip(-1).cumsum(-1).flip(-1), 1.0), (1, 0), value=1.0)
    return widest(height).to(soft) + (soft - soft.detach()) if hard else soft


def widest(height: Tensor) -> Tensor:
    """The ordered mask that ends at the largest entry, as booleans.

    >>> widest(torch.tensor([0.3, 0.9, 0.1])).tolist()
    [True, True, False]
    """
    return torch.arange(height.shape[-1], device=height.device) <= height.argmax(-1, keepdim=True)


class Downward(constraints.Constraint):
    """Vectors that start at 1 and never rise or leave [0, 1]."""

    event_dim = 1

    def check(self, value: Any) -> Any:
        """Whether every row descends, in the shape of the batch."""
        return (value[..., 0] == 1) & (value[..., -1] >= 0) & (value.diff(dim=-1) <= 0).all(-1)


class Downhill(Distribution):
    """z = 1 - cumsum of a Gumbel-softmax variable (definition 1): 1 = z_1 >= z_2 >= ... >= z_K >= 0.

    The density of (z_2..z_K), with c_j = z_j - z_{j+1} and z_{K+1} := 0 (equation 3, its indices put right), is

        q(z) = (K - 1)! t^{K-1} [sum_j beta_j c_j^{-t}]^{-K} prod_j beta_j c_j^{-(t+1)},  t the temperature.

    As t goes to 0 it becomes the Bernoulli chain with the tails beta (property 2): `limit`. `tails`, `keep` and
    `kl_divergence(downhill, chain)` are those of the limit, and of hard samples at any temperature.

    temperature: a number above 0, or a tensor of them that broadcasts with the batch.
    beta or log_beta: (..., K), rows that sum to one.

    >>> q = Downhill(0.5, torch.tensor([0.2, 0.3, 0.5]))
    >>> z = q.rsample((4,))
    >>> z.shape, bool((z[:, 0] == 1).all()), bool((z.diff(dim=-1) <= 0).all())
    (torch.Size([4, 3]), True, True)
    >>> torch.distributions.kl_divergence(q, BernoulliChain.uniform(3))
    tensor(0.0690)
    """

    arg_constraints = {"log_beta": constraints.real_vector, "temperature": constraints.positive}
    support = Downward()
    has_rsample = True

    def __init__(
        self,
        temperature: float | Tensor,
        beta: Tensor | None = None,
        *,
        log_beta: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (beta is None) == (log_beta is None):
            raise ConfigError(
                "Downhill: expected either beta or log_beta, received " + ("none", "both")[beta is not None]
            )
        checked = validate_args is not False  # as in the chain
        if log_beta is None:
            assert beta is not None
            log_beta = log_of_tails(beta) if checked else beta.log()
        elif checked:
            check_log_tails(log_beta)
        self.temperature = torch.as_tensor(temperature, dtype=log_beta.dtype, device=log_beta.device)
        if checked and not bool(((self.temperature > 0) & self.temperature.isfinite()).all()):
            raise ConfigError(
                f"temperature: expected a finite number above 0, received {temperature}; "
                "for masks of zeros and ones: rsample(hard=True), or the chain downhill.limit"
            )
        batch = torch.broadcast_shapes(log_beta.shape[:-1], self.temperature.shape)
        self.temperature = self.temperature.expand(batch)
        self.log_beta = log_beta.expand(batch + log_beta.shape[-1:])
        super().__init__(batch, log_beta.shape[-1:], validate_args=False)
        self._validate_args = checked

    @classmethod
    def from_chain(
        cls, chain: BernoulliChain, temperature: float | Tensor, validate_args: bool | None = None
    ) -> Downhill:
        """The relaxation of a chain; gradients reach its logits.

        >>> Downhill.from_chain(BernoulliChain.uniform(4), 1.0).tails
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
        """
        return cls(temperature, log_beta=chain.log_tails, validate_args=validate_args)

    @property
    def limit(self) -> BernoulliChain:
        """The chain that this is at temperature 0."""
        return BernoulliChain(logits=keep_logits(self.log_beta), validate_args=False)

    @property
    def tails(self) -> Tensor:
        """beta_j, the probability that c_j is the largest step: that a hard sample keeps exactly j nodes; (..., K)."""
        return self.log_beta.exp()

    @property
    def log_keep(self) -> Tensor:
        """log of `keep`; (..., K)."""
        return log_keep(self.log_beta)

    @property
    def keep(self) -> Tensor:
        """S_j = sum_{k >= j} beta_k, the probability that a hard sample keeps node j (A27-A28); (..., K).

        The mean of soft samples has no closed form, and is another where beta is not uniform.
        """
        return self.log_keep.exp()

    def noise(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """The noise of `rsample`: standard Gumbel numbers of shape (sample_shape, batch, K)."""
        like = self.log_beta
        shape = self._extended_shape(sample_shape)
        return gumbel_noise(shape, generator=generator, dtype=like.dtype, device=like.device)

    def rsample(self, sample_shape: Any = (), *, noise: Tensor | None = None, hard: bool = False) -> Tensor:
        """Reparameterised draws of shape (sample_shape, batch, K), or of the shape of the noise where that is given.

        hard: ordered masks of zeros and ones, with the gradient of the soft sample.
        """
        noise = self.noise(sample_shape) if noise is None else noise
        return slope(self.log_beta, self.temperature.unsqueeze(-1), noise, hard)

    def log_prob(self, value: Tensor) -> Tensor:
        """log q(z) of z (..., K); a step that rounds to 0 counts as the smallest number of the dtype.

        At low temperatures most steps do: `log_prob_of_steps` takes them as logarithms and is exact.
        """
        if self._validate_args:
            self._validate_sample(value)
        steps = value - F.pad(value[..., 1:], (0, 1))
        return self.log_prob_of_steps(steps.clamp_min(torch.finfo(steps.dtype).tiny).log())

    def log_prob_of_steps(self, steps: Tensor) -> Tensor:
        """log q(z) of the z that falls by exp(steps_j) after node j, as `log_steps` gives them; (..., K)."""
        t, nodes = self.temperature, self.event_shape[0]
        scores = self.log_beta - t.unsqueeze(-1) * steps
        total = (scores - steps).sum(-1) - nodes * scores.logsumexp(-1)
        return total + math.lgamma(nodes) + (nodes - 1) * t.log()

    def expand(self, batch_shape: Any, _instance: Any = None) -> Downhill:
        """The same distribution over a larger batch."""
        batch = Size(batch_shape)
        log_beta = self.log_beta.expand(batch + self.event_shape)
        return Downhill(self.temperature.expand(batch), log_beta=log_beta, validate_args=False)


@register_kl(Downhill, BernoulliChain)
def _downhill_chain(q: Downhill, p: BernoulliChain) -> Tensor:
    """Of the limit: at a temperature above 0 one is continuous, the other discrete, and the KL is infinite."""
    return tail_kl(q.log_beta, p.log_tails)


@register_kl(Downhill, Downhill)
def _downhill_downhill(q: Downhill, p: Downhill) -> Tensor:
    """The KL of hard samples, whose probabilities are the tails at any temperature (equation 30).

    That of soft samples has no closed form. At equal temperatures it does not depend on the temperature and is larger,
    since a hard sample is a function of a soft one.
    """
    return tail_kl(q.log_beta, p.log_beta)
