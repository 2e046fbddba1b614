"""Latent codes: their KL against Monte Carlo and enumeration, optimal tails, gradients, the noise they draw."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import leanbayes as lb
from leanbayes import ordering
from leanbayes.latents.code import GaussianCode, PointCode, gaussian_kl, log_ratio, sliced_wasserstein
from leanbayes.latents.joint import JointCode
from leanbayes.latents.ordered import OrderedCode
from leanbayes.sampling import using

DRAWS = 20_000


def make(kind: str, size: int = 5) -> torch.nn.Module:
    """A code whose heads depend on the features."""
    torch.manual_seed(3)
    code = {
        "gaussian": lambda: GaussianCode(4, size),
        "ordered": lambda: OrderedCode(4, lb.OrderedLatents(size, prior_keep=0.7, floor=0.0)),
        "floor": lambda: OrderedCode(4, lb.OrderedLatents(size, floor=0.3, prior_keep=None)),
        "uniform": lambda: OrderedCode(4, lb.OrderedLatents(size, tails="uniform")),
        "joint": lambda: JointCode(4, lb.JointLatents(size, (3, 2))),
    }[kind]()
    for parameter in code.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return code.eval()


@pytest.mark.parametrize("kind", ["gaussian", "ordered", "floor", "uniform", "joint"])
def test_closed_form_kl_agrees_with_monte_carlo(kind: str) -> None:
    code, features = make(kind), torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, kl = code(features)
        torch.manual_seed(0)
        _, ratio = code.weighted(features.expand(DRAWS, 4))  # E_q[log q - log p]
    error = ratio.std() / math.sqrt(DRAWS)
    assert abs(float(-ratio.mean() - kl)) < 4 * float(error)
    assert float(error) < 0.05


def test_ordered_kl_by_enumeration() -> None:
    """sum_j beta_j [log beta_j / p(v_j) + sum of the first j kappas], which A18 as printed is not."""
    code, features = make("ordered"), torch.randn(7, 4)
    with torch.no_grad():
        mean, std = code.head(features)
        log_beta, kappa = code.tails_of(features), gaussian_kl(mean, std)
        _, kl = code(features)
        whole = (log_beta.exp() * (log_beta - code.log_prior + kappa.cumsum(1))).sum(1)
        printed = (log_beta.exp() * (log_beta - code.log_prior + kappa)).sum(1)
    torch.testing.assert_close(kl, whole)
    assert bool((whole - printed > 0.05).all())


def test_optimal_tails_by_numerical_optimisation() -> None:
    """A21 as corrected, beta_j ~ p(v_j) exp(-sum_{i <= j} kappa_i), found by minimising the KL of the code."""
    kappa = torch.tensor([0.5, 0.2, 1.0, 0.1, 0.7], dtype=torch.double)
    prior = ordering.BernoulliChain.constant(5, 0.8).log_tails.double()
    best, least = ordering.optimal_tails(prior, kappa)
    raw = torch.zeros(5, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [raw], max_iter=200, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_beta = raw.log_softmax(0)
        value = ordering.tail_kl(log_beta, prior) + ordering.expected_cost(log_beta, kappa)
        value.backward()
        return value.detach()

    optimizer.step(loss)
    torch.testing.assert_close(raw.detach().softmax(0), best.exp(), atol=1e-6, rtol=0)
    assert float(loss() - least) == pytest.approx(0, abs=1e-9)


def test_collapse_is_possible() -> None:
    """With all kappas at 0 the optimal KL is 0: the mask alone guarantees nothing (A.5); one positive kappa does."""
    prior = ordering.BernoulliChain.constant(6, 0.95).log_tails
    log_beta, least = ordering.optimal_tails(prior, torch.zeros(6))
    assert float(least) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(log_beta, prior)
    _, least = ordering.optimal_tails(prior, torch.tensor([0.5, 0, 0, 0, 0, 0]))
    assert float(least) == pytest.approx(0.5, abs=1e-5)  # the first latent is always kept, so its KL is always paid


def test_log_ratio_and_kl_are_those_of_torch() -> None:
    mean, std, h = torch.randn(9), torch.rand(9) + 0.1, torch.randn(9)
    p, q = Normal(0.0, 1.0), Normal(mean, std)
    torch.testing.assert_close(log_ratio(h, mean, std), p.log_prob(h) - q.log_prob(h))
    torch.testing.assert_close(gaussian_kl(mean, std), torch.distributions.kl_divergence(q, p))


def test_dropped_latents_are_zero_and_lengths_follow_the_tails() -> None:
    code = make("ordered")
    features = torch.randn(1, 4).expand(DRAWS, 4)
    with torch.no_grad():
        z, _ = code(features)
        beta = code.tails_of(features[:1])[0].exp()
    lengths = (z != 0).sum(1)
    assert bool(((z != 0).long().diff(dim=1) <= 0).all())
    share = torch.bincount(lengths, minlength=6)[1:] / DRAWS
    assert bool((share - beta).abs().max() < 4 * 0.5 / math.sqrt(DRAWS))


def test_a_set_length_masks_and_pays_for_what_is_kept() -> None:
    code, features = make("ordered"), torch.randn(6, 4)
    mean, std = code.head(features)
    code.width = 2
    z, kl = code(features)
    assert bool((z[:, 2:] == 0).all())
    assert bool((z[:, :2] != 0).all())
    torch.testing.assert_close(kl, gaussian_kl(mean, std)[:, :2].sum(1))
    with using(mean_only=True):
        torch.testing.assert_close(code(features)[0][:, :2], mean[:, :2])


def test_a_limit_is_never_exceeded() -> None:
    code = make("ordered")
    code.limit = 3
    log_beta = code.tails_of(torch.randn(50, 4))
    torch.testing.assert_close(log_beta[:, :3].exp().sum(1), torch.ones(50))
    assert bool((log_beta[:, 3:] == -math.inf).all())
    z, kl = code(torch.randn(50, 4))
    assert bool((z[:, 3:] == 0).all())
    assert bool(kl.isfinite().all())
    kl.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in code.parameters() if p.grad is not None)


@pytest.mark.parametrize("hard", [False, True])
def test_gradients_reach_tails_through_masks(hard: bool) -> None:
    code, features = make("ordered").train(), torch.randn(8, 4)
    code.config = replace(code.config, hard=hard)
    z, _ = code(features)
    assert bool((z == 0).any()) == hard
    z.square().sum().backward()
    assert float(code.tail.weight.grad.abs().sum()) > 0


def test_tails_start_uniform_and_the_floor_holds() -> None:
    start = OrderedCode(4, lb.OrderedLatents(5, whole=0.0)).tails_of(torch.randn(3, 4)).exp()
    torch.testing.assert_close(start, torch.full((3, 5), 0.2))
    code = make("floor")  # half of it on the whole code
    with torch.no_grad():
        code.tail.weight.zero_()
        code.tail.bias.copy_(torch.tensor([50.0, 0, 0, 0, 0]))
        beta = code.tails_of(torch.randn(20, 4)).exp()
    torch.testing.assert_close(beta, torch.tensor([0.73, 0.03, 0.03, 0.03, 0.18]).expand(20, 5))


@pytest.mark.parametrize(("floor", "whole"), [(0.0, 0.5), (0.4, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_a_floor_leaves_probabilities_and_finite_gradients(floor: float, whole: float) -> None:
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    beta = ordering.with_floor(scores.log_softmax(-1), floor, whole).exp()
    torch.testing.assert_close(beta.sum(-1), torch.ones(3))
    assert float(beta[:, -1].detach().min()) >= floor * whole - 1e-6
    (beta.square().sum() + 0 * scores.sum()).backward()
    assert bool(scores.grad.isfinite().all())


def test_files_of_version_1_have_an_even_floor() -> None:
    written = {**lb.config.to_dict(lb.OrderedLatents(5)), "version": 1}
    del written["whole"]
    assert lb.config.from_dict(written).whole == 0.0


@pytest.mark.parametrize(("kind", "hard", "cut"), [("ordered", False, 0), ("ordered", True, 1), ("uniform", False, 1)])
def test_masks_are_relaxed_in_training_alone_where_tails_are_learned(kind: str, hard: bool, cut: int) -> None:
    code, features = make(kind), torch.randn(50, 4)
    code.config = replace(code.config, hard=hard)
    assert bool((code.train()(features)[0] == 0).any()) == bool(cut)
    assert bool((code.eval()(features)[0] == 0).any())


def test_temperature_falls_in_training() -> None:
    torch.manual_seed(0)
    latents = lb.OrderedLatents(4, temperature=2.0, final_temperature=0.5, anneal_steps=10)
    model = lb.image_autoencoder(latents, (1, 8, 8), width=2)
    assert float(model.code.temperature) == 2.0
    lb.fit(model, torch.rand(32, 1, 8, 8), task="bernoulli", epochs=3, batch_size=8, progress=False)
    assert float(model.code.temperature) == pytest.approx(0.5)


def test_sliced_wasserstein_is_the_squared_distance_in_one_dimension() -> None:
    a, b = torch.randn(64, 1), torch.randn(64, 1) + 2
    expected = (a.sort(0).values - b.sort(0).values).square().mean()
    torch.testing.assert_close(sliced_wasserstein(a, b, 7), expected)
    code = PointCode(4, 3, weight=10.0)
    assert bool((code.train()(torch.randn(32, 4))[1] > 0).all())
    assert bool((code.eval()(torch.randn(32, 4))[1] == 0).all())


def test_joint_latents_are_one_hot_and_the_prior_is_uniform() -> None:
    code = make("joint")
    z, _ = code(torch.randn(40, 4))
    assert z.shape == (40, 10)
    assert bool((z[:, 5:8].sum(1) == 1).all())
    assert bool((z[:, 8:].sum(1) == 1).all())
    generator = torch.Generator().manual_seed(0)
    drawn = code.from_prior(torch.stack([code.prior_noise(generator) for _ in range(3000)]))
    assert bool(((drawn[:, 5:8].mean(0) - 1 / 3).abs() < 4 * math.sqrt(2 / 9 / 3000)).all())
    relaxed = code.train()(torch.randn(40, 4))[0][:, 5:8]
    assert bool(((relaxed > 0) & (relaxed < 1)).all())
