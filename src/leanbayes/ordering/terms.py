"""The terms of the objective that depend on the tails, besides `tail_kl`."""

from __future__ import annotations

import torch
from torch import Tensor

from .tails import log_drop, log_keep


def expected_cost(log_beta: Tensor, kept: Tensor, dropped: Tensor | None = None) -> Tensor:
    """Phi_2 = sum_j S_j kept_j + (1 - S_j) dropped_j, S_j = sum_{k >= j} beta_k (equation 12, A12).

    A node is paid for whenever it is kept, not only as the last one: A18 and equation 30, which have beta_j in place
    of S_j, contradict equation 12 and are wrong.

    kept, dropped: (..., K), the KL of the weights of node j (summed over them), or of latent j, given that the node
        is kept or dropped. The shape of the batch.

    >>> log_beta = torch.tensor([0.5, 0.25, 0.25]).log()
    >>> expected_cost(log_beta, torch.tensor([1.0, 2.0, 4.0]))
    tensor(3.)
    """
    total = (log_keep(log_beta).exp() * kept).sum(-1)
    return total if dropped is None else total + (log_drop(log_beta).exp() * dropped).sum(-1)


def expected_width(log_beta: Tensor) -> Tensor:
    """sum_j j beta_j, how many nodes are kept on average: the ordered l0 penalty of equation 13 is lambda times it.

    >>> expected_width(torch.tensor([0.5, 0.25, 0.25]).log())
    tensor(1.7500)
    """
    return log_keep(log_beta).exp().sum(-1)


def optimal_tails(log_prior: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The log beta that minimises Phi_1 + Phi_2, and that minimum: A21 with the cost of equation 12.

        beta_j = p(v_j) exp(-sum_{i <= j} kept_i) / C,  minimum = -log C.

    log_prior, kept: (..., K), as for `tail_kl` and `expected_cost`.

    >>> log_beta, least = optimal_tails(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.0, 1.0]))
    >>> log_beta.exp(), least
    (tensor([0.7311, 0.2689]), tensor(0.3799))
    """
    scores = log_prior - kept.cumsum(-1)
    log_c = torch.logsumexp(scores, -1, keepdim=True)
    return scores - log_c, -log_c.squeeze(-1)
