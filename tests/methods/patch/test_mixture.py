"""The mixture family against closed forms, brute force and torch's own dropout."""

import copy
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leanbayes.errors import ConfigError
from leanbayes.kl import kl, kl_kind
from leanbayes.methods.patch.mixture import (
    SIGMA,
    Assignment,
    BalancedAssignment,
    Mixture,
    drop_connect,
    dropout,
)
from leanbayes.priors import Normal
from leanbayes.sampling import noise_of, using

P = (0.2, 0.5, 0.3)


def mixture(shape=(2, 3), indices=(), p=P, kind=Assignment, dtype=torch.float64):
    torch.manual_seed(0)
    return Mixture(torch.randn(len(p), *shape, dtype=dtype), kind(indices, p))


@pytest.mark.parametrize("indices", [(), (1, 3), (2, 3)], ids=["tensor", "column", "element"])
def test_moments_are_those_of_draws(indices):
    q, draws = mixture(indices=indices), 4000
    with torch.no_grad():
        w = torch.stack([q.sample(q.noise()) for _ in range(draws)])
    spread = 5 * q.std / math.sqrt(draws)
    assert ((w.mean(0) - q.mean).abs() < spread).all()
    fourth = (q.component_weights() * (q.centres - q.mean) ** 4).sum(0)
    error = ((fourth - q.variance**2) / draws).sqrt()
    assert ((w.var(0) - q.variance).abs() < 5 * error + 1e-6).all()


@pytest.mark.parametrize("indices", [(), (1, 3), (2, 3)], ids=["tensor", "column", "element"])
def test_a_draw_takes_each_part_from_the_component_that_its_index_names(indices):
    q = mixture(indices=indices)
    index = q.noise()
    w, z = q.sample(index), index.expand(2, 3)
    assert index.dtype == torch.long
    for i, j in itertools.product(range(2), range(3)):
        assert w[i, j] == q.loc[z[i, j], i, j]
    w.sum().backward()
    drawn = torch.zeros(3, 2, 3).scatter(0, z.unsqueeze(0), 1.0)
    assert torch.equal(q.loc.grad, drawn.double())  # the component that was drawn, and no other


def test_it_draws_with_the_probabilities_given():
    site = Assignment((100_000,), P)
    share = site.noise().bincount(minlength=3) / 100_000
    assert ((share - torch.tensor(P)).abs() < 5 * (torch.tensor(P) / 100_000).sqrt()).all()
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(site.noise(generator), site.noise(torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_balanced_samples_use_every_component_equally_often(shape):
    site = BalancedAssignment(shape, (0.2,) * 5)
    drawn = torch.stack([site.of_sample(11, 0, s) for s in range(40)])
    assert drawn.shape == (40, *shape)
    for block in drawn.reshape(8, 5, -1):
        assert (block.sort(0).values == torch.arange(5).unsqueeze(1)).all()
    again = copy.deepcopy(site)
    assert all(torch.equal(again.of_sample(11, 0, s), drawn[s]) for s in (39, 0, 17))  # in any order
    assert not all(torch.equal(site.of_sample(12, 0, s), drawn[s]) for s in range(5))
    assert not all(torch.equal(site.of_sample(11, 1, s), drawn[s]) for s in range(5))  # another site


@pytest.mark.parametrize("p", [(0.25,) * 4, P, (0.9, 0.1)])
def test_balanced_sampling_is_unbiased_in_every_place_of_a_block(p):
    site, seeds = BalancedAssignment((50,), p), 200
    for s in (0, 1, site.block - 1, site.block):
        drawn = torch.cat([site.of_sample(seed, 0, s) for seed in range(seeds)])
        share = drawn.bincount(minlength=len(p)) / drawn.numel()
        assert ((share - torch.tensor(p)).abs() < 5 * (torch.tensor(p) / drawn.numel()).sqrt()).all()


def test_balanced_counts_are_within_one_where_components_differ():
    site = BalancedAssignment((30,), P)
    drawn = torch.stack([site.of_sample(0, 0, s) for s in range(site.block)])
    for k, p in enumerate(P):
        assert (((drawn == k).sum(0) - site.block * p).abs() <= 1 + 1e-6).all()


def test_two_balanced_sites_are_independent_of_each_other():
    site = BalancedAssignment((), (0.25,) * 4)
    pairs = torch.zeros(4, 4)
    for s in range(4000):
        pairs[site.of_sample(0, 1, s), site.of_sample(0, 2, s)] += 1
    chi = ((pairs - 250) ** 2 / 250).sum()
    assert chi < 33.7  # 99.99 % of 9 degrees of freedom, which is what is left of 15


def test_a_balanced_average_has_less_variance_than_an_independent_one():
    q, s = mixture(indices=(2, 3), p=(0.25,) * 4, kind=BalancedAssignment), 6
    plain = Assignment((2, 3), (0.25,) * 4)

    def spread(site):
        with torch.no_grad():
            means = [torch.stack([q.sample(noise_of(site, r, 0, i)) for i in range(s)]).mean(0) for r in range(300)]
        return torch.stack(means).var(0).mean()

    assert spread(q.assignment) < 0.5 * spread(plain)  # 6 samples: 4 cancel, 2 without replacement are left


def test_the_context_hands_indices_over():
    q = mixture()
    with using(draws={id(q.assignment): torch.tensor(2)}):
        assert torch.equal(q.sample(), q.loc[2])
        assert torch.equal(q.noise(), torch.tensor(2))


def test_vmap_over_indices_is_a_loop_over_them():
    for indices in ((), (1, 3), (2, 3)):
        q = mixture(indices=indices)
        noise = torch.stack([q.noise() for _ in range(5)])
        assert torch.equal(torch.func.vmap(q.sample)(noise), torch.stack([q.sample(n) for n in noise]))


def test_equation_6_is_the_penalty_weighed_by_the_probabilities():
    q, prior = mixture(indices=(2, 3)), Normal(std=0.5)
    by_hand = sum(p * m**2 * 4 / 2 for p, m in zip(P, q.loc, strict=True))  # tau = 4
    assert torch.allclose(kl(q, prior), by_hand)
    assert kl_kind(q, prior) == "up to a constant"
    assert kl_kind(q, prior, "bound") == "approximation"
    gap = kl(q, prior, "bound") - kl(q, prior)
    assert torch.allclose(gap, gap.mean().expand_as(gap))


@pytest.mark.parametrize("indices", [(), (2, 3)], ids=["tensor", "element"])
def test_the_bound_exceeds_the_kl_by_the_entropy_of_the_assignment_where_components_are_apart(indices):
    q, prior = mixture(indices=indices), Normal(mean=0.3, std=2.0)
    exact = kl(q, prior, "monte carlo", samples=400).sum()
    entropy = -sum(p * math.log(p) for p in P) * (6 if indices else 1)
    assert (kl(q, prior, "bound").sum() - exact).item() == pytest.approx(entropy, abs=5 * math.sqrt(6 / 2 / 400))
    assert kl_kind(q, prior, "monte carlo") == "monte carlo"


def test_the_bound_is_the_kl_where_components_coincide_and_above_it_where_they_overlap():
    prior = Normal()
    same = Mixture(torch.ones(3, 5, dtype=torch.float64), Assignment((5,), P))
    assert torch.allclose(kl(same, prior, "monte carlo", samples=500), kl(same, prior, "bound"), atol=0.2)
    close = Mixture(torch.tensor([[0.0], [SIGMA], [3 * SIGMA]], dtype=torch.float64), Assignment((1,), P))
    x = torch.linspace(-8 * SIGMA, 11 * SIGMA, 20001, dtype=torch.float64)
    log_q = torch.stack([close.log_prob(v.reshape(1)) for v in x[::20]]).squeeze(1).detach()
    exact = torch.trapezoid(log_q.exp() * (log_q - prior.log_prob(x[::20])), x[::20])
    sampled = kl(close, prior, "monte carlo", samples=1000).item()
    assert sampled == pytest.approx(exact.item(), abs=0.12)
    assert exact < kl(close, prior, "bound").item() < exact - sum(p * math.log(p) for p in P)


def test_densities_integrate_to_one():
    q = mixture(shape=(), indices=())
    total = 0.0
    for centre in q.centres.detach():
        x = centre + torch.linspace(-8, 8, 801, dtype=torch.float64) * SIGMA
        total += torch.trapezoid(torch.stack([q.log_prob(v) for v in x]).detach().exp(), x)
    assert total == pytest.approx(1, abs=1e-6)


def all_masks(n, rate):
    for bits in itertools.product((0, 1), repeat=n):
        yield torch.tensor(bits), math.prod(1 - rate if b else rate for b in bits)


def test_linear_dropout_drawn_per_datum_is_torchs_dropout():
    torch.manual_seed(0)
    layer, rate, n = nn.Linear(3, 2), 0.3, 10000
    q, x = dropout(layer.weight, rate), torch.randn(3)
    index = torch.stack([q.noise() for _ in range(n)])
    with torch.no_grad():
        ours = torch.func.vmap(lambda z: F.linear(x, q.sample(z), layer.bias))(index)
        theirs = F.linear(F.dropout(x.expand(n, 3), rate), layer.weight, layer.bias)
    for mask, p in all_masks(3, rate):  # both have the same eight atoms, as often
        atom = F.linear(x * mask / (1 - rate), layer.weight, layer.bias).detach()
        for drawn in (ours, theirs):
            share = ((drawn - atom).abs() < 1e-5).all(1).float().mean()
            assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert torch.allclose(q.mean, layer.weight)


def test_conv_dropout_drawn_per_datum_is_dropout2d():
    torch.manual_seed(0)
    conv, rate, n = nn.Conv2d(3, 2, 3, bias=False), 0.4, 3000
    q, x = dropout(conv.weight, rate), torch.randn(3, 4, 4)
    with torch.no_grad():
        ours = torch.stack([F.conv2d(x, q.sample(q.noise())) for _ in range(n)])
        theirs = conv(F.dropout2d(x.expand(n, 3, 4, 4), rate))
    for mask, p in all_masks(3, rate):
        atom = conv(x * mask.reshape(3, 1, 1) / (1 - rate)).detach()
        for drawn in (ours, theirs):
            share = ((drawn - atom).abs() < 1e-5).flatten(1).all(1).float().mean()
            assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_drop_connect_is_the_brute_force_one():
    torch.manual_seed(0)
    w, rate, n = torch.randn(2, 2), 0.25, 6000
    q = drop_connect(w, rate)
    with torch.no_grad():
        ours = torch.stack([q.sample(q.noise()) for _ in range(n)])
    for mask, p in all_masks(4, rate):
        share = ((ours - w * mask.reshape(2, 2) / (1 - rate)).abs() < 1e-6).flatten(1).all(1).float().mean()
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert torch.allclose(q.variance, w**2 * rate / (1 - rate))


def test_pruned_weights_are_zero_and_cost_nothing():
    q = mixture(indices=(2, 3))
    q.keep = torch.tensor([[True, False, True], [True, True, True]])
    assert q.sample()[0, 1] == q.mean[0, 1] == q.std[0, 1] == kl(q, Normal())[0, 1] == 0
    assert q.active_parameters() == 15


def test_copies_and_pickles_draw_alike_and_follow_the_device_and_dtype():
    q = mixture(kind=BalancedAssignment, p=(0.5, 0.5), dtype=torch.float32)
    q.assignment.of_sample(0, 0, 0)
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert all(torch.equal(other.assignment.of_sample(0, 0, s), q.assignment.of_sample(0, 0, s)) for s in range(6))
    assert list(q.state_dict()) == ["loc"]
    assert q.double().sample().dtype == torch.float64
    assert q.to("meta").assignment.device.type == "meta"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Assignment((), (0.5, 0.6)), "sum to 1.*1.1.*divide"),
        (lambda: Assignment((), (1.0,)), "two or more"),
        (lambda: Assignment((), ()), "two or more"),
        (lambda: Assignment((), (1.5, -0.5)), "above 0"),
        (lambda: Mixture(torch.zeros(3, 2), Assignment((), (0.5, 0.5))), "each of 2 probabilities"),
        (lambda: Mixture(torch.zeros(2, 2), Assignment((3,), (0.5, 0.5))), "broadcasts"),
        (lambda: Mixture(torch.zeros(2, 2).long(), Assignment((), (0.5, 0.5))), "floating"),
        (lambda: dropout(torch.zeros(2, 2), 1.0), "rate"),
        (lambda: drop_connect(torch.zeros(2, 2), 0), "rate"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
