"""Where there are no second derivatives, asking for them is an error and not a wrong number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kernels import library
from leanbayes.layers.sparse import dense_path


def _second(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    (slope,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), x)[0]


@pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
def test_of_sparse_layers():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 4)), torch.randn(5, 8, requires_grad=True)
    lb.bayesianize_(net, lb.SparseSubspace(density=0.2))
    with lb.using(mean_only=True):
        with pytest.raises(lb.LeanBayesError, match=r"create_graph=True.*LEANBAYES_KERNELS=off"):
            _second(net, x)
        with dense_path():
            found = _second(net, x)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) > 0


@pytest.mark.parametrize("side", [3, 40])
def test_of_local_noise(side):
    """Of a layer small enough for torch's operations, and of one that the kernel perturbs."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(side, side), nn.Tanh()), torch.randn(200, side, requires_grad=True)
    lb.bayesianize_(net, lb.MeanField(estimator="local"))
    with pytest.raises(lb.LeanBayesError, match=r"create_graph=True.*estimator=\"weight\""):
        _second(net, x)
    with lb.using(estimator="weight"):
        assert bool(_second(net, x).isfinite().all())
    net(x).sum().backward()  # the first ones are there
    gradient = torch.func.grad(lambda x: torch.func.functional_call(net, {}, (x,)).sum())(x.detach())
    assert gradient.shape == x.shape
