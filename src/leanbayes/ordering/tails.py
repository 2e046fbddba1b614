"""Tail probabilities beta and conditional keep probabilities mu: two descriptions of one distribution over widths.

Of K ordered nodes the first I are kept, I in 1..K; the first always is. beta_j = P(I = j) is a point of the simplex
of K entries; mu_j = P(node j is kept | node j - 1 is) for j = 2..K is K - 1 free numbers, held as *logits*. Node j is
kept with probability S_j = sum_{k >= j} beta_k = prod_{k <= j} mu_k (variational nested dropout, A26-A28; B.2 should
read beta_j = (1 - mu_{j+1}) prod_{k <= j} mu_k). Everything is in log space, where a beta of 1e-30 is a number like
any other; nodes are the last dimension.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import number, whole_number
from ..errors import ConfigError


def log_tails(logits: Tensor) -> Tensor:
    """log beta from the keep logits: log beta_j = log(1 - mu_{j+1}) + sum_{k <= j} log mu_k, with mu_{K+1} = 0.

    Equation 10 and A9; the sum is a cumulative one, not the matrix product of equation 11.
    logits: (..., K - 1). Returns (..., K).

    >>> log_tails(torch.zeros(3)).exp()
    tensor([0.5000, 0.2500, 0.1250, 0.1250])
    """
    return log_keep_from_logits(logits) + F.pad(F.logsigmoid(-logits), (0, 1))


def log_keep_from_logits(logits: Tensor) -> Tensor:
    """log S_j = sum_{k <= j} log mu_k from the keep logits (equation 2): (..., K - 1) to (..., K).

    >>> log_keep_from_logits(torch.zeros(2)).exp()
    tensor([1.0000, 0.5000, 0.2500])
    """
    return F.pad(F.logsigmoid(logits).cumsum(-1), (1, 0))


def log_keep(log_beta: Tensor) -> Tensor:
    """log S_j = log sum_{k >= j} beta_k, the marginal probability that node j is kept (A27); shape as given.

    >>> log_keep(torch.tensor([0.5, 0.25, 0.25]).log()).exp()
    tensor([1.0000, 0.5000, 0.2500])
    """
    rest = _log_sums(log_beta[..., 1:].flip(-1)).flip(-1)
    return F.pad(at_most(rest, 0.0), (1, 0))  # the first is 1 by definition


def log_drop(log_beta: Tensor) -> Tensor:
    """log(1 - S_j) = log sum_{k < j} beta_k, exact also where S_j rounds to 1; the first is -inf. Shape as given.

    >>> log_drop(torch.tensor([1e-12, 0.5, 0.5]).log()).exp()
    tensor([0.0000e+00, 1.0000e-12, 5.0000e-01])
    """
    return F.pad(at_most(_log_sums(log_beta[..., :-1]), 0.0), (1, 0), value=-math.inf)


def keep_logits(log_beta: Tensor) -> Tensor:
    """The keep logits of tail probabilities: logit mu_{j+1} = log S_{j+1} - log beta_j; the inverse of `log_tails`.

    beta_j = 0 gives +inf (the next node is surely kept), S_{j+1} = 0 gives -inf (it never is).
    log_beta: (..., K). Returns (..., K - 1).

    >>> keep_logits(torch.tensor([0.5, 0.25, 0.25]).log())
    tensor([0., 0.])
    """
    kept, tail = log_keep(log_beta)[..., 1:], log_beta[..., :-1]
    never = kept == -math.inf  # mu is then not defined by beta, where beta_j is 0 too: -inf - -inf
    return torch.where(never, -math.inf, kept - torch.where(never, 0.0, tail))


def uniform_logits(nodes: int) -> Tensor:
    """Keep logits under which every width is equally likely: mu_k = (K - 1 - k) / (K - k), k = 0..K - 2.

    Where learned tails start: logits of 0 would give half of all draws a width of 1, and a mean width of 2.

    >>> log_tails(uniform_logits(4)).exp()
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    check_nodes(nodes)
    return torch.arange(nodes - 1, 0, -1, dtype=torch.get_default_dtype()).log()


def geometric_tails(nodes: int, rate: float) -> Tensor:
    """log beta_i = log((1 - rate)^{i-1} rate), what lies beyond the last node being added to it (Rippel et al., 2014).

    rate: the conditional probability that a kept node is the last one, in (0, 1).

    >>> geometric_tails(4, rate=0.5).exp()
    tensor([0.5000, 0.2500, 0.1250, 0.1250])
    """
    check_nodes(nodes)
    rate = number("rate", rate, above=0, below=1, hint="try rate=0.1")
    return log_tails(torch.full((nodes - 1,), math.log1p(-rate) - math.log(rate)))


def categorical_tails(weights: Tensor | list[float]) -> Tensor:
    """log beta of given weights of the widths 1..K, which need not sum to one (Cui et al., 2020; FN3).

    >>> categorical_tails([1.0, 1.0, 2.0]).exp()
    tensor([0.2500, 0.2500, 0.5000])
    """
    given = torch.as_tensor(weights)
    given = given if given.is_floating_point() else given.to(torch.get_default_dtype())
    if given.ndim == 0 or given.shape[-1] == 0:
        raise ConfigError(f"weights: expected one a node, at least one, received shape {tuple(given.shape)}")
    if not bool(((given >= 0) & given.isfinite()).all()) or not bool((given.sum(-1) > 0).all()):
        raise ConfigError(f"weights: expected finite numbers of 0 or more, not all 0, received {given}")
    return (given / given.sum(-1, keepdim=True)).log()


def stretches(many: int, nodes: int) -> Tensor:
    """The number of ``many`` fine nodes in each coarse node; fine node i belongs to i * nodes // many.

    >>> stretches(7, 3)
    tensor([3, 2, 2])
    """
    ends = -(-torch.arange(nodes + 1) * many // nodes)
    return ends.diff()


def coarser_tails(log_beta: Tensor, nodes: int) -> Tensor:
    """The tail probabilities of fewer nodes, each with those of its stretch of the finer ones: (..., K), (..., nodes).

    >>> coarser_tails(torch.tensor([0.1, 0.2, 0.3, 0.4]).log(), 2).exp()
    tensor([0.3000, 0.7000])
    """
    check_nodes(nodes)
    many = log_beta.shape[-1]
    if nodes > many:
        raise ConfigError(f"coarser_tails: expected at most {many} nodes, received {nodes}")
    parts = log_beta.split(stretches(many, nodes).tolist(), -1)
    return torch.stack([part.logsumexp(-1) for part in parts], -1)


def ordered_masks(nodes: int) -> Tensor:
    """The K ordered masks v_1..v_K as rows: v_j has j ones, then zeros.

    >>> ordered_masks(3)
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [1., 1., 1.]])
    """
    check_nodes(nodes)
    return torch.ones(nodes, nodes).tril()


def at_most(value: Tensor, high: float) -> Tensor:
    """Take back what rounding put above a bound; unlike a clamp it lets the gradient through.

    >>> at_most(torch.tensor([0.5, 1.0000001]), 1.0)
    tensor([0.5000, 1.0000])
    """
    return value - (value.detach() - high).clamp_min(0.0)


def log_of_tails(beta: Tensor, what: str = "beta") -> Tensor:
    """log beta of tail probabilities that are checked: none negative or NaN, rows that sum to one.

    The sum may be off by what the dtype's rounding explains (1e-5 for float32), and is then put right.

    >>> log_of_tails(torch.tensor([0.5, 0.6]))
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: beta: expected rows that sum to 1, received a sum of 1.1; ...
    """
    _check_rows(beta, what)
    if not bool(((beta >= 0) & (beta <= 2)).all()):
        raise ConfigError(f"{what}: expected probabilities in [0, 1], received {beta}")
    total = beta.sum(-1, keepdim=True)
    _check_total(total, beta.dtype, what)
    return beta.log() - total.log()


def check_log_tails(log_beta: Tensor, what: str = "log_beta") -> None:
    """Refuse values that are not log beta: NaN, +inf, or rows whose exponentials do not sum to one.

    >>> check_log_tails(torch.tensor([0.5, 0.5]).log())
    """
    _check_rows(log_beta, what)
    if bool((log_beta.isnan() | (log_beta == math.inf)).any()):
        raise ConfigError(f"{what}: expected logarithms of probabilities, received {log_beta}")
    _check_total(log_beta.detach().logsumexp(-1).exp(), log_beta.dtype, what)


def check_nodes(nodes: int) -> None:
    """Refuse a number of nodes that is no whole number of at least 1."""
    whole_number("nodes", nodes)


def _check_rows(value: Tensor, what: str) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        received = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"{what}: expected a floating-point tensor, received {received}; try torch.tensor([0.5, 0.5])"
        )
    if value.ndim == 0 or value.shape[-1] == 0:
        raise ConfigError(f"{what}: expected (..., nodes) with at least one node, received shape {tuple(value.shape)}")


def _check_total(total: Tensor, dtype: torch.dtype, what: str) -> None:
    off = (total.detach() - 1).abs()
    if not bool((off <= max(1e-5, 4 * torch.finfo(dtype).eps)).all()):
        worst = float(total.detach().flatten()[off.flatten().argmax()])
        raise ConfigError(
            f"{what}: expected rows that sum to 1, received a sum of {worst:.6g}; "
            "for weights of any sum: categorical_tails(weights)"
        )


def with_floor(log_beta: Tensor, floor: float, whole: float = 0.0) -> Tensor:
    """Tail log-probabilities of which a share is given: ``floor``, spread evenly but for its part on the last node.

    whole: that part, from 0 to 1.

    >>> with_floor(torch.tensor([0.5, 0.25, 0.25]).log(), 0.6, whole=0.5).exp()
    tensor([0.3000, 0.2000, 0.5000])
    """
    if not floor:
        return log_beta
    given = log_beta.new_full(log_beta.shape[-1:], floor * (1 - whole) / log_beta.shape[-1])
    given[-1] += floor * whole
    return torch.logaddexp(log_beta + math.log1p(-floor), given.log()) if floor < 1 else given.log().expand_as(log_beta)


def _log_sums(values: Tensor) -> Tensor:
    """Cumulative log-sum-exp that stays -inf, with a gradient of 0 instead of NaN, as long as all it has seen is."""
    seen = (values > -math.inf).cumsum(-1) > 0
    floor = torch.finfo(values.dtype).min / 4
    return torch.where(seen, torch.logcumsumexp(values.clamp_min(floor), -1), -math.inf)
