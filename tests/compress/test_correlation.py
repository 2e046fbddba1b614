"""The correlation of uncertainties over widths, and the width that it suggests."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError, ConversionError, DataError


def nested():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1))
    return model


def test_it_is_the_pearson_correlation_of_entropies_at_each_width():
    model, x = nested(), torch.randn(60, 4)
    other = 3 * torch.randn(40, 4)
    before = copy.deepcopy(model.state_dict())
    found = lb.width_correlation(
        model, x, ood={"other": other}, widths=(1.0, 0.25, 0.5), samples=4, task="classification"
    )
    assert found.widths == (0.25, 0.5, 1.0)
    entropies = []
    for width in found.widths:
        narrow = copy.deepcopy(model)
        lb.set_width_(narrow, width)
        lb.recalibrate_(narrow, x)
        entropies.append(lb.predict(narrow, other, 4, task="classification").entropy)
    a, b = entropies[0] - entropies[0].mean(), entropies[2] - entropies[2].mean()
    assert torch.allclose(found.outside["other"][0, 2], (a * b).sum() / (a.norm() * b.norm()), atol=1e-5)
    assert torch.allclose(found.inside, found.inside.T)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items() if isinstance(v, torch.Tensor))
    svg = found.figure()
    assert svg.startswith("<svg")
    assert all(text in svg for text in ("in domain", "other", "25%"))


def test_the_width_that_is_suggested():
    inside = torch.tensor([[1.0, 0.9, 0.95], [0.9, 1.0, 0.8], [0.95, 0.8, 1.0]])  # a gap at the width in between
    assert lb.WidthCorrelation((0.25, 0.5, 1.0), inside).suggested(0.9) == 1.0
    assert lb.WidthCorrelation((0.25, 0.5, 1.0), inside).suggested(0.8) == 0.25
    outside = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.85], [0.1, 0.85, 1.0]])
    assert lb.WidthCorrelation((0.25, 0.5, 1.0), inside, {"a": outside}).suggested(0.8) == 0.5


def test_bad_arguments():
    with pytest.raises(ConversionError, match="ordered channels"):
        lb.width_correlation(nn.Linear(4, 3), torch.randn(5, 4), task="classification")
    with pytest.raises(ConfigError, match="widths: expected two different ones"):
        lb.width_correlation(nested(), torch.randn(5, 4), widths=(0.5,), task="classification")
    with pytest.raises(ConfigError, match="uncertainty: expected"):
        lb.width_correlation(nested(), torch.randn(5, 4), uncertainty="energy", task="classification")
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    lb.bayesianize_(model, lb.Nested(groups=8))
    with pytest.raises(DataError, match="two data or more"):
        lb.width_correlation(model, torch.randn(1, 4), task="classification")
