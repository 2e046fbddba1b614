"""What stands behind a sparse operation is one pass with it, and changes no number."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.reference import close, doubled
from torch import nn

from leanbayes.kernels import geometry, operation
from leanbayes.kernels.blocked import Blocked, blocked
from leanbayes.kernels.deferred import Pass
from leanbayes.kernels.plan import plan

STAGES = [s for n in range(4) for s in itertools.combinations(("norm", "sum", "rectifier"), n)]
CONV = nn.Conv2d(6, 10, 3, padding=1, bias=False)


def chain(y, other, norm, stages):
    """Torch's own functions, on whatever y is."""
    if "norm" in stages:
        y = norm(y)
    if "sum" in stages:
        y = y + other
    return F.relu(y) if "rectifier" in stages else y


def fused(stages, batch, training, dtype):
    """Output and gradients of a chain: in float32 by the kernels, in float64 by torch."""
    torch.manual_seed(batch)
    index = torch.randperm(CONV.weight.numel())[:120].to(torch.int32)
    leaves = [torch.randn(batch, 6, 5, 7), torch.randn(120), torch.randn(batch, 10, 5, 7)]
    norm = nn.BatchNorm2d(10)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
        norm.running_mean.normal_()
    norm.train(training).to(dtype)
    grad = torch.randn(batch, 10, 5, 7).to(dtype)
    if dtype == torch.float32:
        x, weight, other = (t.requires_grad_() for t in leaves)
        ready = plan(geometry.of_conv(CONV, (5, 7)), index)
        y = operation.apply(blocked(x), weight, None, None, ready, 0, (batch, 10, 5, 7))
        out = chain(y, blocked(other), norm, stages)
        assert isinstance(out, Blocked)
        assert isinstance(out.cell.held, Pass)  # nobody needed the numbers in between
        y = out.plain()
    else:
        x, weight, other = doubled(leaves)
        whole = x.new_zeros(CONV.weight.numel()).index_copy(0, index.long(), weight).view(CONV.weight.shape)
        y = chain(F.conv2d(x, whole, None, padding=1), other, norm, stages)
    wanted = {"x": x, "weight": weight}
    wanted |= {"other": other} if "sum" in stages else {}
    wanted |= {"gamma": norm.weight, "beta": norm.bias} if "norm" in stages else {}
    found = torch.autograd.grad(y, list(wanted.values()), grad)
    return {"output": y.detach(), **dict(zip(wanted, found, strict=True))}, norm


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("batch", [3, 16, 37])
@pytest.mark.parametrize("stages", STAGES, ids="-".join)
def test_any_chain_equals_torchs_own(stages, batch, training, level):
    (ours, norm), (exact, expected) = (fused(stages, batch, training, d) for d in (torch.float32, torch.float64))
    for name, value in ours.items():
        size = exact[name].abs() + exact[name].abs().max()  # a norm mixes the terms of a channel
        close(value, exact[name], size, name)
    for a, b in zip(norm.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=1e-5)


def test_an_output_with_two_readers_has_both_gradients():
    index = torch.arange(0, CONV.weight.numel(), 7, dtype=torch.int32)
    ready = plan(geometry.of_conv(CONV, (4, 4)), index)
    found = []
    for twice in (True, False):
        torch.manual_seed(0)
        x, weight = torch.randn(5, 6, 4, 4), torch.randn(len(index), requires_grad=True)
        y = operation.apply(x, weight, None, None, ready, 0, (5, 10, 4, 4))
        out = F.relu(y).plain() + y.plain() if twice else F.relu(y.plain()) + y.plain()
        found.append([out, *torch.autograd.grad(out.square().sum(), weight)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_the_graph_is_that_of_the_time_of_the_operation():
    ready = plan(geometry.of_linear(2, 3), torch.tensor([0, 4], dtype=torch.int32))
    x, weight = torch.ones(4, 3), torch.ones(2, requires_grad=True)
    with torch.no_grad():
        without = operation.apply(x, weight, None, None, ready, 0, (4, 2))
    with_graph = operation.apply(x, weight, None, None, ready, 0, (4, 2))
    assert not torch.relu(without).requires_grad
    with torch.no_grad():
        assert not torch.relu(with_graph).requires_grad
    assert torch.relu(with_graph).requires_grad
