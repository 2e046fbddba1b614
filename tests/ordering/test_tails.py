"""beta and mu against plain products in double precision, at a thousand nodes and at the ends of the range."""

import math

import pytest
import torch

from leanbayes.errors import ConfigError
from leanbayes.ordering import (
    categorical_tails,
    geometric_tails,
    keep_logits,
    log_drop,
    log_keep,
    log_keep_from_logits,
    log_tails,
    ordered_masks,
    uniform_logits,
)
from leanbayes.ordering.tails import check_log_tails, log_of_tails


def tails_by_loop(mu: list[float]) -> list[float]:
    """beta_j = (1 - mu_{j+1}) prod_{k <= j} mu_k, one node after the other."""
    beta, reached = [], 1.0
    for m in mu:
        beta.append(reached * (1 - m))
        reached *= m
    return [*beta, reached]


def test_beta_of_mu_and_back() -> None:
    mu = [0.9, 0.3, 0.75, 0.5, 0.01]
    logits = torch.logit(torch.tensor(mu, dtype=torch.double))
    beta = torch.tensor(tails_by_loop(mu), dtype=torch.double)
    assert torch.allclose(log_tails(logits).exp(), beta, rtol=1e-12)
    assert torch.allclose(keep_logits(beta.log()), logits, rtol=1e-10)
    kept = torch.tensor([1 - beta[:j].sum() for j in range(6)], dtype=torch.double)  # the scaling factor of A28
    assert torch.allclose(log_keep(beta.log()).exp(), kept, rtol=1e-10)
    assert torch.allclose(log_keep_from_logits(logits).exp(), kept, rtol=1e-10)
    assert torch.allclose(log_drop(beta.log()).exp(), 1 - kept, atol=1e-14)


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_two_thousand_nodes_in_single_precision(scale: float) -> None:
    exact = (torch.randn(3, 2047, dtype=torch.double) * scale + math.log(2000)).float().double()
    logits = exact.float().requires_grad_()
    log_beta = log_tails(logits)
    wanted = log_tails(exact)
    assert ((log_beta - wanted).abs() / wanted.abs().clamp_min(1)).max() < 2e-6
    assert (log_beta.exp().sum(-1) - 1).abs().max() < 1e-5
    kept = log_keep(log_beta.detach().requires_grad_())
    assert (kept - log_keep_from_logits(exact)).abs().div(wanted.abs().clamp_min(1)).max() < 1e-4
    back = keep_logits(log_beta)
    # the difference of two logarithms as large as 2e4 has the digits that they have
    assert bool(((back - exact).abs() < 1e-4 + 4 * torch.finfo(torch.float).eps * wanted[:, 1:].abs()).all())
    for out in (log_beta, back, log_keep(log_beta).exp()):
        (slope,) = torch.autograd.grad(out.sum(), logits, retain_graph=True)
        assert bool(slope.isfinite().all())


def test_the_gradients_are_those_of_double_precision() -> None:
    logits = (torch.randn(12, dtype=torch.double) * 3).requires_grad_()
    assert torch.autograd.gradcheck(log_tails, (logits,))
    scores = (torch.randn(12, dtype=torch.double) * 3).requires_grad_()
    for function in (log_keep, keep_logits, lambda v: log_drop(v)[1:]):
        assert torch.autograd.gradcheck(lambda v, f=function: f(v.log_softmax(-1)), (scores,))


def test_one_width_with_nearly_all_the_mass() -> None:
    beta = torch.full((1500,), 1e-30)
    beta[700] = 1.0
    log_beta = log_of_tails(beta).requires_grad_()
    kept, dropped = log_keep(log_beta), log_drop(log_beta)
    assert torch.equal(kept[:701].exp(), torch.ones(701))
    assert torch.allclose(kept[701:], torch.arange(799, 0, -1).log() - 30 * math.log(10), rtol=1e-5)
    assert torch.allclose(dropped[1:701], torch.arange(1, 701).log() - 30 * math.log(10), rtol=1e-5)
    logits = keep_logits(log_beta)
    assert torch.allclose(log_tails(logits), log_beta, rtol=1e-4, atol=1e-5)
    (slope,) = torch.autograd.grad(logits.sum(), log_beta)
    assert bool(slope.isfinite().all())


def test_rounding_above_one_keeps_its_gradient() -> None:
    above = 0
    for nodes in range(2, 200):
        log_beta = torch.full((nodes + 1,), -math.log(nodes))
        log_beta[0] = -80.0  # S_2 is 1 to every digit
        above += int(torch.logcumsumexp(log_beta.flip(-1), -1)[-2] > 0)
        log_beta.requires_grad_()
        kept = log_keep(log_beta)
        assert bool((kept <= 0).all())
        (slope,) = torch.autograd.grad(kept[1], log_beta)
        assert torch.allclose(slope[1:], torch.full((nodes,), 1 / nodes), rtol=1e-3)
    assert above > 0  # or else this has tested nothing


def test_probabilities_of_exactly_zero() -> None:
    log_beta = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0, 0.0]).log().requires_grad_()
    assert log_keep(log_beta).exp().tolist() == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]
    assert log_drop(log_beta).exp().tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    logits = keep_logits(log_beta)
    assert logits.tolist() == [math.inf, 0.0, math.inf, -math.inf, -math.inf]
    assert torch.equal(log_tails(logits).exp(), log_beta.exp())
    (slope,) = torch.autograd.grad(log_keep(log_beta).exp().sum(), log_beta)
    assert torch.allclose(slope, torch.tensor([0.0, 0.5, 0.0, 1.5, 0.0, 0.0]))


@pytest.mark.parametrize("nodes", [1, 2, 31, 128, 1024])
def test_the_start_is_uniform(nodes: int) -> None:
    logits = uniform_logits(nodes)
    mu = torch.tensor([(nodes - 1 - k) / (nodes - k) for k in range(nodes - 1)])
    assert torch.allclose(logits.sigmoid(), mu)
    assert torch.allclose(log_tails(logits).exp(), torch.full((nodes,), 1 / nodes), rtol=1e-4)
    if nodes in (31, 128):  # the range of the logits
        assert logits[-1] == 0
        assert logits[0] == pytest.approx({31: 3.4, 128: 4.84}[nodes], abs=0.01)


def test_fixed_tails() -> None:
    beta = geometric_tails(6, rate=0.3).exp()
    assert torch.allclose(beta[:5], torch.tensor([0.7 ** (i - 1) * 0.3 for i in range(1, 6)]))
    assert float(beta[5]) == pytest.approx(0.7**5)  # the last one takes what lies beyond it
    assert categorical_tails([0, 3, 1]).exp().tolist() == [0.0, 0.75, 0.25]
    assert geometric_tails(1, rate=0.5).tolist() == [0.0]
    assert ordered_masks(5).sum(-1).tolist() == [1, 2, 3, 4, 5]


def test_bad_tails_are_refused() -> None:
    for nodes in (0, -1, 2.0, True):
        with pytest.raises(ConfigError, match="nodes: expected a whole number"):
            uniform_logits(nodes)
    for rate in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="rate"):
            geometric_tails(3, rate=rate)
    for weights in ([0.0, 0.0], [1.0, -1.0], [math.nan, 1.0], [math.inf, 1.0], []):
        with pytest.raises(ConfigError, match="weights"):
            categorical_tails(weights)
    with pytest.raises(ConfigError, match=r"sum to 1, received a sum of 0\.9"):
        log_of_tails(torch.tensor([[0.5, 0.5], [0.5, 0.4]]))
    with pytest.raises(ConfigError, match="in \\[0, 1\\]"):
        log_of_tails(torch.tensor([1.5, -0.5]))
    with pytest.raises(ConfigError, match="received"):
        log_of_tails(torch.tensor([math.nan, 0.5]))
    with pytest.raises(ConfigError, match="at least one node"):
        log_of_tails(torch.zeros(3, 0))
    with pytest.raises(ConfigError, match="floating-point"):
        log_of_tails(torch.tensor([1, 0]))
    with pytest.raises(ConfigError, match="floating-point"):
        log_of_tails([0.5, 0.5])  # type: ignore[arg-type]
    for bad in (math.nan, math.inf):
        with pytest.raises(ConfigError, match="logarithms"):
            check_log_tails(torch.tensor([bad, 0.0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.float, torch.double])
def test_softmax_outputs_pass_as_beta_in_every_precision(dtype: torch.dtype) -> None:
    for nodes in (3, 1000):
        log_of_tails(torch.randn(20, nodes).softmax(-1).to(dtype))
