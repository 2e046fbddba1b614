"""What patches cost, by `lb.cost`: overhead, the number of networks, random numbers (tables 1 and 3)."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.methods.patch import norms, norms_and_output
from leanbayes.models import pyramidnet_small, resnet18_cifar


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


PLAIN = 4 * 8 + 8 + 16 + 27
CASES = {
    # method, parameters, networks as (base, exponent), random numbers
    "EMP": (lb.Patch(5, cross=False), PLAIN + 4 * (16 + 27), (5, 2), 2),
    "ECMP": (lb.Patch(5), PLAIN + 4 * (16 + 27), (5, 16 + 27), 16 + 27),
    "ensemble of patches": (lb.Patch(5, cross=False, shared=True), PLAIN + 4 * (16 + 27), (5, 1), 1),
    "dropout": (lb.Dropout(0.1), PLAIN, (2, 8), 8),
    "DropConnect": (lb.DropConnect(0.1), PLAIN, (2, 24), 24),
    "ensemble": (lb.Ensemble(5), 5 * PLAIN, (5, 1), 1),
    "mean-field": (lb.MeanField(), PLAIN + 40 + 27, None, 40 + 27),
}


@pytest.mark.parametrize("case", CASES)
def test_overhead_and_the_number_of_networks(case):
    method, parameters, networks, numbers = CASES[case]
    model = small()
    lb.bayesianize_(model, method)
    found = lb.cost(model, torch.zeros(2, 4))
    assert (found.parameters, found.plain_parameters, found.random_numbers) == (parameters, PLAIN, numbers)
    assert found.overhead == pytest.approx(parameters / PLAIN - 1)
    expected = math.inf if networks is None else networks[1] * math.log10(networks[0])
    assert found.ensemble_log10 == pytest.approx(expected)
    assert "networks" in str(found)


def test_a_plain_network_is_one_network():
    found = lb.cost(small(), torch.zeros(2, 4))
    assert (found.overhead, found.ensemble_log10, found.random_numbers) == (0.0, 0.0, 0)
    assert found.plain_parameters == found.parameters == PLAIN


def test_a_models_own_dropout_is_counted_and_forgotten_again():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    lb.bayesianize_(model, lb.Dropout())
    assert lb.cost(model, torch.zeros(2, 4)).ensemble_log10 == pytest.approx(8 * math.log10(2))
    assert model[1].shapes == []


def test_convolutional_networks():
    model = resnet18_cifar(width=4)
    before = sum(p.numel() for p in model.parameters())
    channels = sum(m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    lb.bayesianize_(model, norms(lb.Patch(5, cross=False)))
    found = lb.cost(model, torch.zeros(1, 3, 8, 8))
    assert found.overhead == pytest.approx(4 * 2 * channels / before)
    assert found.ensemble_log10 == pytest.approx(20 * math.log10(5))
    model = pyramidnet_small(width=4, alpha=6, depth=8)
    lb.bayesianize_(model, norms_and_output(model, lb.Patch(5)))
    found = lb.cost(model, torch.zeros(1, 3, 8, 8))
    patched = sum(q.numel() // 5 for n, q in model.named_parameters() if n.endswith("loc"))
    assert found.ensemble_log10 == pytest.approx(patched * math.log10(5))
