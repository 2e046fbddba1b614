"""Max pooling in blocks against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies as st

from leanbayes.kernels.blocked import Blocked, blocked


def compare(x, *options, **more):
    """Output and gradient, which are the same bits: nothing is computed."""
    found = []
    for wrap in (blocked, lambda t: t):
        leaf = x.clone().requires_grad_()
        y = F.max_pool2d(wrap(leaf), *options, **more)
        y = y.plain() if isinstance(y, Blocked) else y
        grad = torch.arange(1.0, y.numel() + 1).view(y.shape)
        found.append((y, *torch.autograd.grad(y, leaf, grad)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, equal_nan=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_window_equals_torchs(data, level):
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = data.draw(st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    size = tuple(data.draw(st.integers(k, 9)) for k in kernel)
    torch.manual_seed(data.draw(st.integers(0, 2**20)))
    compare(torch.randn(data.draw(st.integers(1, 40)), 3, *size), kernel, stride, padding)


def test_equals_and_nan(level):
    """The first of equals has the gradient, and NaN wins, as in torch; zeros behind a ReLU are equals."""
    torch.manual_seed(0)
    compare(torch.randn(5, 2, 6, 6).relu(), 2)
    x = torch.randn(5, 2, 6, 6)
    x[2, 1, 3, 3] = float("nan")
    compare(x, 3, 2, 1)


@pytest.mark.parametrize("more", [{"ceil_mode": True}, {"dilation": 2}])
def test_other_windows_are_torchs_own(more):
    compare(torch.randn(3, 2, 7, 7), 2, 2, **more)
