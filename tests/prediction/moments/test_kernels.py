"""The compiled kernels and torch's functions give the same moments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import DataError
from leanbayes.kernels import gaussian, library
from leanbayes.prediction.moments.engine import OnePass
from leanbayes.prediction.moments.law import Moments
from leanbayes.prediction.moments.walk import Walk

pytestmark = pytest.mark.skipif(library.library() is None, reason="there are no compiled kernels here")


class Network(nn.Module):
    """A normalisation before a rectifier and max pooling, residual sums of both kinds, groups, and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.body, self.norm2 = nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.BatchNorm2d(6)
        self.strided = nn.Conv2d(6, 6, 3, stride=2)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm(self.stem(x)).relu(), 3, 2, 1, ceil_mode=True)
        x = torch.relu(self.norm2(self.body(x)) + x)
        x = torch.relu(self.strided(x)) + 1
        x = x + 0.5 * self.strided(torch.ones(x.shape[0], 6, 5, 5))
        return self.head(x)


def moments(model: nn.Module, x: Tensor) -> Moments:
    engine = OnePass(model, 1, 0)
    with torch.no_grad():
        law = Walk(model, 1, 0, engine._noise)(x)
    assert isinstance(law, Moments)
    return law


def test_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Network().eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    lb.bayesianize_(model, lb.MeanField())
    x, asked = torch.randn(5, 1, 10, 10), []
    serves = gaussian.serves
    monkeypatch.setattr(gaussian, "serves", lambda *tensors: asked.append(serves(*tensors)) or asked[-1])
    ours = moments(model, x)
    assert sum(asked) >= 6  # two convolutions, three rectifiers, one pooling at least
    monkeypatch.setattr(gaussian, "serves", lambda *tensors: False)
    twin = moments(model, x)
    std = twin.variance.sqrt()
    assert bool(((ours.mean - twin.mean).abs() < 1e-4 * std).all())
    assert bool(((ours.variance - twin.variance).abs() < 1e-4 * twin.variance).all())


@pytest.mark.parametrize("wrong", ["variance", "factor", "near"])
def test_tensors_that_do_not_fit_are_refused(wrong: str) -> None:
    x = torch.rand(2, 3, 4, 4)
    parts = {"variance": x, "factor": torch.rand(3), "near": torch.rand(2, 3)}
    parts[wrong] = torch.rand(2, 2, 4, 4) if wrong == "variance" else torch.rand(2)
    window = gaussian.Window(4, 2, 2, 0, 1, 2)
    with pytest.raises(DataError, match="expected"):
        gaussian.largest(gaussian.Terms(x, parts["variance"], parts["factor"]), window, window, parts["near"])
