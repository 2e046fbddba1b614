"""Gaussians at a few places of a tensor."""

import math

import pytest
import torch

from leanbayes.errors import ArtifactError, ConfigError
from leanbayes.kl import kl, kl_kind
from leanbayes.methods.sparse.posterior import SparseGaussian
from leanbayes.posteriors import Gaussian
from leanbayes.priors import LogUniform, Normal, StudentT


@pytest.fixture
def q():
    torch.manual_seed(0)
    return SparseGaussian.from_tensor(torch.randn(4, 3, 2), count=5, std=0.3)


def test_starts_at_the_largest_and_is_zero_elsewhere(q):
    torch.manual_seed(0)
    w = torch.randn(4, 3, 2)
    assert torch.equal(q.mean[q.mean != 0].abs().sort().values, w.flatten().abs().sort().values[-5:])
    assert torch.equal(q.mean, torch.where(q.mean != 0, w, 0.0))
    assert torch.allclose(q.std[q.mean != 0], torch.tensor(0.3))
    draw = q.sample()
    assert (draw[q.mean == 0] == 0).all()
    assert q.shape == w.shape
    assert q.density == 5 / 24
    assert q.active_parameters() == 10
    assert {p.numel() for p in q.parameters()} == {5}


def test_moments_of_draws(q):
    n = 4000
    draws = torch.stack([q.sample() for _ in range(n)])
    assert ((draws.mean(0) - q.mean).abs() <= 5 * q.std / math.sqrt(n)).all()
    assert ((draws.std(0) - q.std).abs() <= 5 * q.std / math.sqrt(2 * n)).all()


def test_the_order_of_slots_means_nothing(q):
    shuffle = torch.randperm(5)
    other = SparseGaussian(q.loc[shuffle].detach(), q.rho[shuffle].detach(), q.index[shuffle], q.shape)
    assert torch.equal(q.mean, other.mean)
    assert torch.equal(q.std, other.std)


@pytest.mark.parametrize("prior", [Normal(std=0.5), LogUniform(), StudentT()])
def test_the_kl_is_that_of_the_active_weights(q, prior):
    active = Gaussian(q.loc.detach(), q.rho.detach())
    torch.manual_seed(1)
    mine = kl(q, prior)
    torch.manual_seed(1)
    assert mine.shape == (5,)
    assert torch.equal(mine, kl(active, prior))
    assert kl_kind(q, prior) == kl_kind(active, prior)


def test_pruned_slots_are_zero_and_cost_nothing(q):
    q.keep = torch.ones(q.shape, dtype=torch.bool)
    q.keep.view(-1)[q.index[:2].long()] = False
    assert int((q.mean != 0).sum()) == int((q.sample() != 0).sum()) == 3
    assert (kl(q, Normal())[:2] == 0).all()
    assert (q.active_mean()[:2] == 0).all()
    assert (q.active_sample()[:2] == 0).all()
    assert q.active_parameters() == 6


@pytest.mark.parametrize(
    ("index", "message"),
    [([0, 1, 24], "places from 0 to 23"), ([-1, 1, 2], "places from 0"), ([1, 1, 2], "every place once")],
)
def test_bad_places_are_refused_and_nothing_changes(index, message):
    shape, three = torch.Size((4, 6)), torch.zeros(3)
    with pytest.raises(ConfigError, match=message):
        SparseGaussian(three, three.clone(), torch.tensor(index), shape)
    q = SparseGaussian(three, three.clone(), torch.tensor([3, 2, 1]), shape)
    before = {k: v.clone() for k, v in q.state_dict().items()}
    bad = {**before, "index": torch.tensor(index, dtype=torch.int32), "loc": torch.ones(3)}
    with pytest.raises(ArtifactError, match=message):
        q.load_state_dict(bad)
    assert all(torch.equal(v, before[k]) for k, v in q.state_dict().items())


def test_bad_shapes_are_refused():
    two, three, shape = torch.zeros(2), torch.zeros(3), torch.Size((4, 6))
    with pytest.raises(ConfigError, match="one shape"):
        SparseGaussian(two, two, torch.arange(3), shape)
    with pytest.raises(ConfigError, match="rho"):
        SparseGaussian(three, two, torch.arange(3), shape)
