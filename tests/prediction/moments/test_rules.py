"""Every rule against draws of its input: tolerances follow from the number of draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.prediction.moments.carried import Carried, settle
from leanbayes.prediction.moments.engine import OnePass
from leanbayes.prediction.moments.law import Draws, Moments
from leanbayes.prediction.moments.walk import Walk

DRAWS = 20_000


def carried(x: Moments, samples: int = 4) -> Carried:
    return Carried(x, Walk(nn.Identity(), samples, 0, []))


def law(x: Tensor) -> Moments:
    assert isinstance(x, Carried)
    settle([x])
    assert isinstance(x.law, Moments)
    return x.law


def random_input(*shape: int, seed: int = 0) -> Moments:
    generator = torch.Generator().manual_seed(seed)
    return Moments(torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) + 0.05)


def agree(function, x: Moments, bias: float = 0.0, off: float = 0.0) -> None:
    """Means within 5 standard errors plus a bias in standard deviations, variances within 5 of theirs plus a share."""
    said = law(function(carried(x)))
    torch.manual_seed(1)
    rows = x.mean.shape[0]
    noise = torch.randn(DRAWS, *x.mean.shape)
    values = function((x.mean + x.variance.sqrt() * noise).flatten(0, 1)).unflatten(0, (DRAWS, rows))
    mean, std = values.mean(0), values.std(0)
    error = (said.mean - mean).abs()
    assert said.mean.shape == said.variance.shape == mean.shape
    assert bool((error <= (5 / DRAWS**0.5 + bias) * std + 1e-5).all()), float((error / std).max())
    fourth = (values - mean).pow(4).mean(0) / std.pow(4).clamp_min(1e-12)
    width = 5 * ((fourth - 1).clamp_min(0) / DRAWS).sqrt() + off
    assert bool(((said.variance - std**2).abs() <= width * std**2 + 1e-5).all())


EXACT = {
    "relu": F.relu,
    "in place": lambda x: F.relu(x.clone(), inplace=True),
    "method": lambda x: x.clone().relu_(),
    "leaky": lambda x: F.leaky_relu(x, 0.2),
    "abs": torch.abs,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.1, 0.3, -0.2])),
    "relu6": lambda x: F.relu6(2 * x),
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(min=-0.3),
    "clamp_max": lambda x: x.clamp_max(0.5),
    "square": torch.square,
    "product with itself": lambda x: x * x,
    "power": lambda x: x**3,
    "affine": lambda x: 3 - 2 * (x + 1) / 4,
    "in-place sum": lambda x: x.clone().add_(1).mul_(torch.arange(1.0, 4.0).view(3, 1, 1)),
    "twice": lambda x: x + x,
    "reshape": lambda x: x.flatten(1).view(-1, 3, 16).transpose(1, 2).unsqueeze(0).squeeze(0)[:, 2:5],
    "cat": lambda x: (
        torch.cat([x, torch.ones_like(x)], 1) if not isinstance(x, Carried) else torch.cat([x, torch.ones(x.shape)], 1)
    ),
    "stack": lambda x: torch.stack([x[:, 0], x[:, 1]], 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
    "setitem": lambda x: _set(x.clone()),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean((2, 3)),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
    "linear": lambda x: F.linear(x, _weight(5, 4), _weight(5)),
    "conv": lambda x: F.conv2d(x, _weight(4, 3, 3, 3), _weight(4), stride=2, padding=1),
    "depthwise": lambda x: F.conv2d(x, _weight(3, 1, 3, 3), groups=3, padding="same"),
    "transposed": lambda x: F.conv_transpose2d(x, _weight(3, 2, 3, 3), stride=2),
    "matmul": lambda x: x @ _weight(4, 6),
    "batch norm": lambda x: F.batch_norm(x, _weight(3), _weight(3).square() + 1, _weight(3), _weight(3)),
}
CLOSE = {  # bias in standard deviations, relative error of the variance
    "gelu": (F.gelu, 0.005, 0.01),
    "silu": (F.silu, 0.005, 0.01),
    "tanh": (torch.tanh, 0.005, 0.02),
    "sigmoid": (torch.sigmoid, 0.005, 0.01),
    "softplus": (F.softplus, 0.005, 0.01),
    "elu": (F.elu, 0.02, 0.03),
    "max_pool": (lambda x: F.max_pool2d(x, 2), 0.06, 0.1),
    "max_pool, overlapping": (lambda x: F.max_pool2d(x, 3, stride=1, padding=1), 0.12, 0.2),
    "relu before max_pool": (lambda x: F.max_pool2d(F.relu(x), 2), 0.06, 0.25),
    "maximum": (lambda x: torch.maximum(x[:, 0], x[:, 1]), 0.0, 0.0),
}


def _set(x: Tensor) -> Tensor:
    x[:, 1] = 2.0
    return x


def _weight(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", EXACT)
def test_exact_for_independent_gaussians(name: str) -> None:
    agree(EXACT[name], random_input(2, 3, 4, 4))


@pytest.mark.parametrize("name", CLOSE)
def test_approximations(name: str) -> None:
    function, bias, off = CLOSE[name]
    agree(function, random_input(2, 3, 4, 4), bias, off)


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(64), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.RMSNorm(64)]
)
def test_norms_of_many_numbers(norm: nn.Module) -> None:
    x = random_input(2, 64) if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) else random_input(2, 4, 8, 8)
    with torch.no_grad():
        agree(norm.eval(), x, bias=0.05, off=0.4)


def test_extremes_stay_finite() -> None:
    mean = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4, 0.0])
    variance = torch.tensor([1e-4, 0.0, 0.0, 0.0, 1e-4, 1e8])
    for function in (F.relu, F.relu6, F.leaky_relu, F.gelu, torch.abs):
        said = law(function(carried(Moments(mean, variance))))
        certain = function(mean)
        assert bool(said.mean.isfinite().all() and (said.variance >= 0).all())
        assert torch.allclose(said.mean[:5], certain[:5], rtol=1e-5, atol=1e-5), function
    assert law(F.relu(carried(Moments(mean, variance)))).variance[4].item() == pytest.approx(1e-4, rel=1e-4)


def test_in_place_on_a_view_is_seen_by_its_base() -> None:
    x = carried(random_input(2, 6))
    view = x.view(2, 3, 2)
    view.mul_(2.0)
    assert torch.equal(law(x).variance, law(view).variance.view(2, 6))
    assert float(law(x).mean.sum()) == pytest.approx(2 * float(random_input(2, 6).mean.sum()), rel=1e-5)


def test_what_has_no_rule_is_sampled() -> None:
    x = carried(random_input(3, 5), samples=6)
    out = torch.softmax(x, 1)
    assert isinstance(out, Carried)
    assert isinstance(out.law, Draws)
    assert out.law.values.shape == (6, 3, 5)
    assert torch.allclose(out.law.values.sum(2), torch.ones(6, 3))
    assert "softmax" in next(iter(x.walk.reasons.values()))
    both = x - out  # x has the draws that softmax saw
    assert torch.allclose(both.law.values, x.law.values - out.law.values)


def test_positions_under_one_filter_vary_together() -> None:
    """The average over positions of a convolution's output, against draws of its weights; independence is far off."""
    import leanbayes as lb

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip
    lb.bayesianize_(model, lb.MeanField(std=0.1))
    x = torch.rand(3, 2, 6, 6)
    with torch.no_grad():
        said = Walk(model, 1, 0, OnePass(model, 1, 0)._noise())(x)
        with lb.using(estimator="weight"):
            drawn = torch.stack([model(x) for _ in range(800)])
    assert isinstance(said, Moments)
    ratio = float(said.variance.mean() / drawn.var(0).mean())
    assert 0.8 < ratio < 1.25
