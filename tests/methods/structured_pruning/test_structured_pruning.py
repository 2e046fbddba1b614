"""Structured Bayesian pruning: the cut log-normal against quadrature and scipy, the layer, and what is pruned."""

import copy
import math

import mpmath
import pytest
import torch
from scipy import stats
from torch import nn

import leanbayes as lb
from leanbayes.costs import cost
from leanbayes.errors import ConfigError, ConversionError
from leanbayes.kl import kl, kl_kind, kl_sum
from leanbayes.likelihoods import Regression
from leanbayes.methods.structured_pruning import StructuredPruning, prune_channels_
from leanbayes.methods.structured_pruning.posterior import LOW, TruncatedLogNormal, kl_to_log_uniform
from leanbayes.priors import LogUniform

# loc and log std: usual ones, wide, narrow, and an interval in either tail
PLACES = [(0.0, -5.0), (-1.0, -1.0), (-10.0, 1.0), (-3.0, 3.0), (2.0, -0.5), (-25.0, 0.5), (-19.0, -2.0), (0.05, -3.0)]


def q_at(*places):
    loc, log_std = (torch.tensor(x, dtype=torch.double) for x in zip(*places, strict=True))
    return TruncatedLogNormal(loc, log_std)


def exact(loc, log_std):
    """E theta, E theta^2 and the KL by mpmath's quadrature, 30 digits."""
    with mpmath.workdps(30):
        std = mpmath.e**log_std
        knots = sorted({LOW, 0.0, *(min(max(loc + k * float(std), LOW), 0.0) for k in (-8, -3, -1, 0, 1, 3, 8))})
        knots = sorted({*knots, *(max(LOW, -k * float(std) ** 2 / max(loc, 1e-9)) for k in (1, 5, 30) if loc > 0)})

        def at(z):
            return mpmath.exp(-(((z - loc) / std) ** 2) / 2)

        mass = mpmath.quad(at, knots)
        first = mpmath.quad(lambda z: at(z) * mpmath.exp(z), knots) / mass
        second = mpmath.quad(lambda z: at(z) * mpmath.exp(2 * z), knots) / mass
        square = mpmath.quad(lambda z: at(z) * ((z - loc) / std) ** 2, knots) / mass
        divergence = -square / 2 - mpmath.log(mass) + mpmath.log(-LOW)
        return float(first), float(mpmath.sqrt(second - first**2)), float(divergence)


@pytest.mark.parametrize("place", PLACES)
def test_moments_and_kl_are_those_of_quadrature(place):
    q = q_at(place)
    mean, std, divergence = exact(*place)
    assert q.mean.item() == pytest.approx(mean, rel=1e-9)
    assert q.std.item() == pytest.approx(std, rel=1e-6)
    assert q.snr().item() == pytest.approx(mean / std, rel=1e-6)
    assert kl(q, LogUniform()).item() == pytest.approx(divergence, rel=1e-8, abs=1e-9)
    assert kl_kind(q, LogUniform()) == "up to a constant"


@pytest.mark.parametrize("place", PLACES)
def test_draws_and_density_are_those_of_scipy(place):
    q, (loc, log_std) = q_at(place), place
    std = math.exp(log_std)
    other = stats.truncnorm((LOW - loc) / std, -loc / std, loc=loc, scale=std)
    u = torch.linspace(0.001, 0.999, 99, dtype=torch.double).unsqueeze(1)
    z = q.sample(u).log().squeeze(1).detach()
    assert torch.allclose(z, torch.tensor(other.ppf(u.squeeze(1))), rtol=1e-6, atol=1e-9)
    assert torch.allclose(q.log_prob(z.exp()).detach() + z, torch.tensor(other.logpdf(z)), atol=1e-5)
    assert q.log_prob(torch.tensor([2.0])).item() == -math.inf


def test_extremes_are_finite_with_gradients():
    loc = torch.tensor([-1e4, -20.0, -20.0, 0.0, 0.0, 5.0, 1e4]).repeat(4)
    log_std = torch.tensor([-50.0, -8.0, 0.0, 9.0]).repeat_interleave(7)
    q = TruncatedLogNormal(loc, log_std)
    for u in (0.0, 1e-30, 0.5, 1 - 6e-8, 1.0):
        theta = q.sample(torch.full_like(loc, u))
        assert ((theta >= 0) & (theta <= 1)).all()
        (theta.sum() + kl_to_log_uniform(q).sum() + q.mean.sum() + q.snr().log().sum()).backward()
    assert q.loc.grad.isfinite().all()
    assert q.log_std.grad.isfinite().all()
    assert (kl_to_log_uniform(q) > -1e-4).all()


def test_gradients_of_the_draw_are_those_of_differences():
    q = q_at(*PLACES)
    u = torch.rand(len(PLACES), dtype=torch.double, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(
        lambda a, b: _moved(q, a, b, u),
        (q.loc.detach().clone().requires_grad_(), q.log_std.detach().clone().requires_grad_()),
    )


def _moved(q, loc, log_std, u):
    other = copy.copy(q)
    other._parameters = {"loc": loc, "log_std": log_std}
    return torch.cat([other.sample(u), kl_to_log_uniform(other), other.mean])


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3)
    )


def test_the_network_at_the_means_begins_as_the_plain_one_and_goes_back():
    model, x = network(), torch.rand(5, 1, 6, 6)
    plain = model(x)
    plan = lb.bayesianize_(model, StructuredPruning())
    assert plan.converted == ["2", "4", "5"]
    with lb.using(mean_only=True):
        assert torch.allclose(model(x), plain, atol=1e-6)
        with torch.no_grad():
            for layer in (model[2], model[4], model[5]):
                layer.scale.loc.uniform_(-3, 0)
        moved = model(x)
    assert not torch.allclose(moved, plain, atol=1e-3)
    assert torch.allclose(lb.restore_(model)(x), moved, atol=1e-6)


def test_transposed_convolutions_go_back_too():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2)), torch.rand(2, 4, 3, 3)
    lb.bayesianize_(model, StructuredPruning())
    model[0].scale.loc.data.uniform_(-3, 0)
    with lb.using(mean_only=True):
        moved = model(x)
    assert torch.allclose(lb.restore_(model)(x), moved, atol=1e-6)


def test_noise_is_a_datum_s_own_in_training_and_shared_by_a_sample():
    model = nn.Sequential(nn.Linear(6, 6))
    lb.bayesianize_(model, StructuredPruning(log_std=0.0))
    x = torch.ones(4, 6)
    rows = model(x)
    assert not torch.allclose(rows[0], rows[1])
    sampled = lb.predict(model, x, samples=3, task="regression").mean
    assert torch.allclose(sampled[0], sampled[1])


def test_training_drowns_channels_that_carry_nothing_and_pruning_removes_them():
    torch.manual_seed(0)
    x = torch.randn(400, 12)
    y = x[:, :2].sum(1, keepdim=True)  # ten inputs are needless
    model = nn.Sequential(nn.Linear(12, 1))
    lb.bayesianize_(model, StructuredPruning())
    before = kl_sum(model).item()
    task = Regression(std=1.0)  # of these data learned noise would vanish, and small weights count
    lb.fit(model, (x, y), task=task, epochs=60, lr=0.05, scale_lr=0.05, batch_size=100, progress=False)
    assert kl_sum(model).item() < before
    left = prune_channels_(model)
    assert left["0"][0] <= 4
    assert model[0].scale.keep[:2].all()
    found = cost(model, x[:2])
    assert found.active_parameters == model[0].active_parameters() == left["0"][0] * 3 + 1
    with lb.using(mean_only=True):
        assert torch.nn.functional.mse_loss(model(x), y) < 0.3
        changed = x.clone()
        changed[:, ~model[0].scale.keep] = 9.0
        assert torch.equal(model(changed), model(x))
    kept = {name: t.clone() for name, t in model.state_dict().items()}
    again = nn.Sequential(nn.Linear(12, 1))
    lb.bayesianize_(again, StructuredPruning())
    again.load_state_dict(kept)
    assert torch.equal(again[0].scale.keep, model[0].scale.keep)


def test_a_layer_never_loses_everything():
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, StructuredPruning(log_std=4.0))
    model[0].scale.loc.data[1] = 1.0
    assert prune_channels_(model, threshold=1e9) == {"0": (1, 3)}


def test_bad_values_are_refused():
    for options in ({"log_std": math.nan}, {"log_std": 9.0}, {"low": 0.0}, {"low": -100.0}):
        with pytest.raises(ConfigError):
            StructuredPruning(**options)
    with pytest.raises(ConversionError, match="bayesianize_"):
        prune_channels_(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="threshold"):
        prune_channels_(nn.Linear(2, 2), threshold=math.nan)
    with pytest.raises(ConfigError, match="shape of loc"):
        TruncatedLogNormal(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ConfigError, match="low"):
        TruncatedLogNormal(torch.zeros(2), torch.zeros(2), low=1.0)
