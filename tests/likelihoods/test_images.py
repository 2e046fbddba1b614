"""Likelihoods of pixels: against torch.distributions and by summing over all grey values; names; what is refused."""

from __future__ import annotations

import pytest
import torch

import leanbayes as lb
from leanbayes.errors import ConfigError, DataError
from leanbayes.likelihoods import Bernoulli, DiscretizedLogistic, from_dict, likelihood


def test_bernoulli_is_that_of_torch() -> None:
    logits, x = torch.randn(3, 1, 4, 4), (torch.rand(3, 1, 4, 4) > 0.5).float()
    expected = torch.distributions.Bernoulli(logits=logits).log_prob(x).flatten(1).sum(1)
    torch.testing.assert_close(Bernoulli().log_prob(logits, x), expected)
    mean, noise = Bernoulli().mean_and_noise(logits)
    torch.testing.assert_close(noise, mean * (1 - mean))


@pytest.mark.parametrize("scale", [1e-3, 0.05, 3.0])
def test_the_masses_of_all_grey_values_sum_to_one(scale: float) -> None:
    values = (torch.arange(256.0) / 255).double().reshape(256, 1)
    for output in (-4.0, 0.0, 3.0):
        mass = DiscretizedLogistic(scale=scale).log_prob(torch.full_like(values, output), values).detach()
        assert float(mass.exp().sum()) == pytest.approx(1, abs=1e-6)
        assert bool(mass.isfinite().all())


def test_the_mass_is_a_difference_of_cumulative_probabilities() -> None:
    x, output = torch.tensor([[100 / 255]]).double(), torch.tensor([[-0.4]]).double()
    mean = torch.sigmoid(output)
    cdf = [torch.sigmoid((x + side * 0.5 / 255 - mean) / 0.1) for side in (1, -1)]
    found = DiscretizedLogistic(scale=0.1).log_prob(output, x).exp().detach()
    assert float(found) == pytest.approx(float(cdf[0] - cdf[1]), rel=1e-5)  # the scale is a single-precision number


def test_they_are_saved_and_loaded_by_name() -> None:
    for name in ("bernoulli", "discretized-logistic"):
        assert likelihood(name).task == name
        assert from_dict(likelihood(name).to_dict()).to_dict() == likelihood(name).to_dict()
    assert from_dict(DiscretizedLogistic(16, 0.2).to_dict()).scale == pytest.approx(0.2)
    with pytest.raises(ConfigError, match=r"DiscretizedLogistic\.levels"):
        DiscretizedLogistic(levels=1)
    with pytest.raises(ConfigError, match="'bernoulli'"):
        likelihood("bernouli")


@pytest.mark.parametrize("kind", [Bernoulli, DiscretizedLogistic])
def test_wrong_images_are_refused(kind: type) -> None:
    x = torch.rand(2, 1, 4, 4)
    with pytest.raises(DataError, match=r"pixels in \[0, 1\], received values from 0 to 255"):
        kind().log_prob(x, torch.tensor([0.0, 255.0]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4))
    with pytest.raises(DataError, match=r"pixels in \[0, 1\]"):
        kind().log_prob(x, x * torch.nan)
    with pytest.raises(DataError, match="shape of the outputs"):
        kind().log_prob(x, x[:, 0])
    with pytest.raises(DataError, match="received none"):
        kind().log_prob(x, None)


def test_gaussian_pixels_are_a_regression() -> None:
    x = torch.rand(2, 1, 4, 4)
    expected = torch.distributions.Normal(x, 0.3).log_prob(x + 0.1).flatten(1).sum(1)
    torch.testing.assert_close(lb.Regression("fixed", std=0.3).log_prob(x, x + 0.1), expected)
