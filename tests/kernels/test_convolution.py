"""Convolutions of many samples by the kernel, against torch's one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

from leanbayes.errors import DataError
from leanbayes.kernels import convolution, library
from leanbayes.kernels.convolution import convolve
from leanbayes.layers.operations import operation_of

pytestmark = pytest.mark.skipif(library.library() is None, reason=library.reason() or "")


def one_by_one(x, weight, bias, padding):
    """The twin: torch's convolution of every sample."""
    given = [x, weight] if bias is None else [x, weight, bias]
    count = max(map(len, given))
    parts = [t.expand(count, *t.shape[1:]) for t in given]
    return torch.stack([F.conv2d(*each, padding=padding) for each in zip(*parts, strict=True)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape_equals_torchs(data, level):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    kernel, padding = (draw(1, 4), draw(1, 4)), (draw(0, 3), draw(0, 3))
    size = [draw(max(1, k - 2 * p), 21) for k, p in zip(kernel, padding, strict=True)]
    batch, inputs, outputs = draw(1, 4), draw(1, 5), draw(1, 9)
    count = draw(1, 3)
    own = [draw(0, 1) * (count - 1) + 1 for _ in range(3)]
    torch.manual_seed(draw(0, 2**20))
    x = torch.randn(own[0], batch, inputs, *size)
    weight, bias = torch.randn(own[1], outputs, inputs, *kernel), torch.randn(own[2], outputs)
    bias = bias if draw(0, 1) else None
    found, expected = convolve(x, weight, bias, padding), one_by_one(x, weight, bias, padding)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_sample_does_not_depend_on_the_others(level):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(6, 3, 2, 7, 9), torch.randn(6, 5, 2, 3, 3), torch.randn(6, 5)
    together = convolve(x, weight, bias, (1, 1))
    for i in range(6):
        alone = convolve(x[i : i + 1, 2:], weight[i : i + 1], bias[i : i + 1], (1, 1))
        assert torch.equal(together[i, 2:], alone[0])


def test_infinity_stays_where_its_window_is(level):
    x = torch.zeros(1, 1, 1, 5, 6)
    x[..., 2, 5] = float("inf")
    found = convolve(x, torch.ones(1, 1, 1, 3, 3), None, (1, 1))
    assert torch.equal(found, one_by_one(x, torch.ones(1, 1, 1, 3, 3), None, (1, 1)))


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ([2, 3, 1, 4, 3, 3, 1, 1, 5, 5], (149, 72, 8, 600)),
        ([2, 3, 1, 4, 3, 3, 1, 1, 5, 5], (150, 71, 8, 600)),
        ([2, 3, 1, 4, 3, 3, 1, 1, 5, 5], (150, 72, 7, 600)),
        ([2, 3, 1, 4, 3, 3, 1, 1, 5, 5], (150, 72, 8, 599)),
        ([2, 3, 1, 4, 3, 3, 0, 0, 2, 5], (60, 72, 8, 0)),  # an image that is smaller than the kernel
        ([2, 3, 1, 4, 3, 3, -1, 1, 5, 5], (150, 72, 8, 600)),
        ([0, 3, 1, 4, 3, 3, 1, 1, 5, 5], (75, 36, 4, 0)),
        ([2**40, 2**40, 1, 4, 3, 3, 1, 1, 5, 5], (150, 72, 8, 600)),
        ([1, 1, 2**20, 1, 1, 1, 0, 0, 2**10, 2**10], (1, 1, 1, 1)),  # places beyond 32 bits
        ([2, 3, 1, 4, 3, 3, 1, 1, 5], (150, 72, 8, 600)),
    ],
)
def test_what_does_not_fit_is_refused(shape, counts):
    x, weight, bias, y = (torch.zeros(n) for n in counts)
    with pytest.raises(DataError, match="nothing was computed"):
        library.call("leanbayes_convolve", shape, x, weight, bias, y)


def test_a_vectorised_layer_takes_the_kernel_where_that_serves(monkeypatch):
    layer = nn.Conv2d(3, 4, 3, padding=1)
    x, weight = torch.randn(5, 2, 3, 6, 6), torch.randn(5, 4, 3, 3, 3)
    called = []
    monkeypatch.setattr(convolution, "convolve", lambda *a: called.append(1) or convolve(*a))

    def apply(x, weight):
        return operation_of(layer).apply(layer, x, weight, layer.bias)

    def calls(function, *given):
        called.clear()
        return function(*given), len(called)

    for dims in ((0, 0), (None, 0), (0, None)):
        given = [t if d == 0 else t[0] for t, d in zip((x, weight), dims, strict=True)]
        with torch.no_grad():
            found, by_kernel = calls(torch.vmap(apply, dims), *given)
        plain, not_by_kernel = calls(torch.vmap(apply, dims), *given)  # with gradients
        assert (by_kernel, not_by_kernel) == (1, 0)
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        nested, by_kernel = calls(torch.vmap(torch.vmap(apply)), x[None], weight[None])
        assert not by_kernel
        torch.testing.assert_close(nested[0], one_by_one(x, weight, layer.bias[None], 1), rtol=1e-4, atol=1e-4)
        turned = calls(torch.vmap(apply, (2, 0)), x.movedim(0, 2), weight)
        torch.testing.assert_close(turned[0], one_by_one(x, weight, layer.bias[None], 1), rtol=1e-4, atol=1e-4)
        with pytest.raises(RuntimeError, match="channels"):  # torch's own error
            torch.vmap(apply)(x[:, :, :2], weight)
        layer.double()
        assert calls(torch.vmap(apply), x.double(), weight.double())[1] == 0


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(128, 128, 3), nn.Conv1d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.Linear(4, 4),
    ],
)  # fmt: skip
def test_other_layers_are_torchs(layer):
    assert not convolution.narrow(layer)
