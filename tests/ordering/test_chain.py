"""The Bernoulli chain against the product of its conditionals over all 2^K binary vectors."""

import itertools
import math

import pytest
import torch
from scipy import stats
from torch.distributions import kl_divergence

from leanbayes.errors import ConfigError
from leanbayes.ordering import BernoulliChain, expected_cost, expected_width, optimal_tails, tail_kl

MU = [0.9, 0.35, 0.6, 0.99, 0.2]
PI = [0.5, 0.8, 0.7, 0.4, 0.95]


def chain(mu: list[float]) -> BernoulliChain:
    return BernoulliChain(probs=torch.tensor(mu, dtype=torch.double))


def by_conditionals(z: tuple[int, ...], mu: list[float]) -> float:
    """Equation 1, one node after the other, with p(z_1 = 1) = 1."""
    total = float(z[0])
    for before, now, keep in zip(z, z[1:], mu, strict=False):
        on = keep if before else 0.0
        total *= on if now else 1 - on
    return total


ALL = list(itertools.product((0, 1), repeat=len(MU) + 1))
P = {z: by_conditionals(z, MU) for z in ALL}


def test_log_prob_is_the_product_of_the_conditionals() -> None:
    assert sum(P.values()) == pytest.approx(1)
    unchecked = BernoulliChain(probs=torch.tensor(MU, dtype=torch.double), validate_args=False)
    found = unchecked.log_prob(torch.tensor(ALL, dtype=torch.double)).exp()
    assert torch.allclose(found, torch.tensor([P[z] for z in ALL], dtype=torch.double), rtol=1e-12)
    with pytest.raises(ValueError):
        chain(MU).log_prob(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]))


def test_moments_entropy_and_mode_by_enumeration() -> None:
    p = chain(MU)
    mean = torch.tensor([sum(w * z[j] for z, w in P.items()) for j in range(6)], dtype=torch.double)
    assert torch.allclose(p.mean, mean, rtol=1e-12)
    assert torch.allclose(p.variance, mean * (1 - mean), atol=1e-14)
    assert float(p.entropy()) == pytest.approx(-sum(w * math.log(w) for w in P.values() if w))
    assert tuple(p.mode.int().tolist()) == max(P, key=lambda z: P[z])
    assert torch.allclose(p.log_prob(p.enumerate_support()), p.log_tails)


def test_kl_equals_enumeration_and_the_chain_rule() -> None:
    q, p = chain(MU), chain(PI)
    brute = sum(w * math.log(w / by_conditionals(z, PI)) for z, w in P.items() if w)
    assert float(kl_divergence(q, p)) == pytest.approx(brute, rel=1e-12)
    # and the chain rule: each node's Bernoulli KL, paid if the node before is kept
    bernoulli = kl_divergence(
        torch.distributions.Bernoulli(torch.tensor(MU, dtype=torch.double)),
        torch.distributions.Bernoulli(torch.tensor(PI, dtype=torch.double)),
    )
    assert float((q.keep[:-1] * bernoulli).sum()) == pytest.approx(brute, rel=1e-12)
    assert float(kl_divergence(q, q)) == 0


def test_kl_where_probabilities_are_zero() -> None:
    log_beta = torch.tensor([0.5, 0.5, 0.0]).log().requires_grad_()
    value = tail_kl(log_beta, torch.tensor([0.25, 0.75, 0.0]).log())
    assert value.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert bool(torch.autograd.grad(value, log_beta)[0].isfinite().all())
    assert float(tail_kl(torch.zeros(1), torch.zeros(1))) == 0
    assert float(tail_kl(torch.tensor([0.5, 0.5]).log(), torch.tensor([1.0, 0.0]).log())) == math.inf


def test_samples_have_the_tail_frequencies() -> None:
    p = chain(MU)
    z = p.sample((100_000,))
    assert bool(p.support.check(z).all())
    observed = z.sum(-1).long().bincount(minlength=7)[1:]
    assert stats.chisquare(observed.numpy(), (p.tails * 100_000).numpy()).pvalue > 1e-3


def test_straight_through_samples_are_masks_with_the_gradient_of_the_mean() -> None:
    logits = torch.randn(5, dtype=torch.double, requires_grad=True)
    p, weights = BernoulliChain(logits=logits), torch.randn(6, dtype=torch.double)
    z = p.rsample((40,))
    assert bool(p.support.check(z).all())
    (found,) = torch.autograd.grad((z @ weights).mean(), logits)
    (wanted,) = torch.autograd.grad(p.keep @ weights, logits)
    assert torch.allclose(found, wanted)


def test_batches_and_expansion() -> None:
    p = BernoulliChain(logits=torch.randn(3, 1, 4))
    assert (p.batch_shape, p.event_shape) == ((3, 1), (5,))
    wide = p.expand((3, 2))
    z = wide.sample((7,))
    assert z.shape == (7, 3, 2, 5)
    assert torch.equal(wide.log_prob(z), p.log_prob(z))
    assert wide.enumerate_support().shape == (5, 3, 2, 5)
    assert p.entropy().shape == (3, 1)
    alone = BernoulliChain(logits=torch.zeros(0))
    assert alone.sample((2,)).tolist() == [[1.0], [1.0]]
    assert float(alone.entropy()) == 0


def test_cost_terms_by_enumeration() -> None:
    q = chain(MU)
    kept, dropped = torch.rand(6, dtype=torch.double), torch.rand(6, dtype=torch.double)
    brute = sum(w * sum(float(kept[j] if z[j] else dropped[j]) for j in range(6)) for z, w in P.items())
    assert float(expected_cost(q.log_tails, kept, dropped)) == pytest.approx(brute, rel=1e-12)
    matrix = torch.ones(6, 6, dtype=torch.double).tril()  # equation 12 as printed, which is right
    phi = dropped @ (1 - matrix).T @ q.tails + kept @ matrix.T @ q.tails
    assert float(phi) == pytest.approx(brute, rel=1e-12)
    paid_by_the_last = float((q.tails * kept).sum())  # A18, which is not
    assert abs(paid_by_the_last - float(expected_cost(q.log_tails, kept))) > 0.1
    widths = sum(w * sum(z) for z, w in P.items())
    assert float(expected_width(q.log_tails)) == pytest.approx(widths, rel=1e-12)


def test_the_best_tails_cannot_be_bettered() -> None:
    prior, kept = chain(PI).log_tails, torch.tensor([0.3, 0.1, 0.5, 0.0, 2.0, 0.4], dtype=torch.double)
    best, least = optimal_tails(prior, kept)

    def objective(log_beta: torch.Tensor) -> torch.Tensor:
        return tail_kl(log_beta, prior) + expected_cost(log_beta, kept)

    assert float(objective(best)) == pytest.approx(float(least), rel=1e-12)
    others = torch.log_softmax(best + 0.3 * torch.randn(500, 6, dtype=torch.double), -1)
    assert bool((objective(others) > least).all())
    free = best.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(free.log_softmax(-1)), free)
    assert slope.abs().max() < 1e-12


def test_without_its_kl_the_bound_is_larger() -> None:
    """A17 leaves -KL out of A16: what it maximises is above the bound, by an amount that differs between tails."""
    prior = chain(PI).log_tails
    left_out = torch.stack([tail_kl(chain(mu).log_tails, prior) for mu in (MU, PI, MU[::-1])])
    assert float(left_out.min()) == pytest.approx(0, abs=1e-12)
    assert float(left_out.max()) > 0.5


def test_the_kl_of_a_shared_draw_is_not_the_sum_over_layers() -> None:
    """Two layers with uniform tails of K widths and independent priors: one mask for both costs log K, not 0."""
    uniform = torch.full((4,), 0.25, dtype=torch.double)
    joint, independent = torch.diag(uniform), uniform[:, None] * uniform
    shared = torch.special.xlogy(joint, joint / independent).sum()
    assert float(shared) == pytest.approx(math.log(4))
    assert float(2 * tail_kl(uniform.log(), uniform.log())) == 0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="either probs or logits, received none"):
        BernoulliChain()
    with pytest.raises(ConfigError, match="received both"):
        BernoulliChain(torch.rand(2), torch.rand(2))
    with pytest.raises(ConfigError, match="probabilities in"):
        BernoulliChain(torch.tensor([0.5, 1.5]))
    with pytest.raises(ConfigError, match="logits: expected numbers"):
        BernoulliChain(logits=torch.tensor([math.nan]))
    with pytest.raises(ConfigError, match="floating-point"):
        BernoulliChain(logits=torch.tensor(0.0))
    with pytest.raises(ConfigError, match="sum to 1"):
        BernoulliChain.from_tails(torch.tensor([0.5, 0.4]))
    with pytest.raises(ConfigError, match="nodes"):
        BernoulliChain.uniform(0)
    with pytest.raises(ConfigError, match="probabilities"):
        BernoulliChain.constant(3, 1.2)
    with pytest.raises(ConfigError, match="either beta or log_beta"):
        BernoulliChain.from_tails()
