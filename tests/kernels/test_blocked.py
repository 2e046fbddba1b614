"""Blocked activations behave as the tensors they stand for, whatever code they meet."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leanbayes.kernels import layout
from leanbayes.kernels.blocked import Blocked, blocked


def both(function, *shape, atol=1e-6):
    """Value and gradient of a function of a tensor, blocked and plain; the first also says what type came out."""
    torch.manual_seed(0)
    values = torch.randn(*shape)
    found = []
    for wrap in (blocked, lambda t: t):
        x = values.clone().requires_grad_()
        torch.manual_seed(1)
        out = function(wrap(x))
        kind = type(out)
        out = out.plain() if isinstance(out, Blocked) else out
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        found.append((kind, out.detach(), x.grad))
    (kind, ours, gradient), (_, theirs, expected) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=atol)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=10 * atol)
    return kind


STAYS = {
    "relu": F.relu,
    "module": nn.ReLU(),
    "in place": lambda x: F.relu(x * 2.0, inplace=True),
    "gelu": F.gelu,
    "abs": torch.abs,
    "add": lambda x: x + x,
    "add a number": lambda x: 1.5 + x,
    "add a plain one": lambda x: x + torch.ones(x.shape),
    "plain first": lambda x: torch.ones(x.shape) + x,
    "add in place": lambda x: _grown(x * 1.0),
    "times": lambda x: x * x * 3.0,
    "max pool": nn.MaxPool2d(2),
    "padded max pool": nn.MaxPool2d(3, 2, 1),
    "average pool": nn.AvgPool2d(2),
    "flatten": lambda x: x.flatten(1),
    "view": lambda x: x.view(x.size(0), -1) * 2.0,
    "mean": lambda x: x.mean((2, 3)),
    "global pool": lambda x: torch.flatten(F.adaptive_avg_pool2d(x, 1), 1),
}
LEAVES = {
    "flatten all": lambda x: x.flatten(),
    "index": lambda x: x[:, 1:],
    "concatenate": lambda x: torch.cat([x, x], 1),
    "mean of channels": lambda x: x.mean(1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
    "convolution": lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3)),
    "scaled by channel": lambda x: x * torch.arange(3.0).view(1, 3, 1, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
}


def _grown(x):
    x += 1.0
    return x


@pytest.mark.parametrize("batch", [1, 5, 32, 40])
@pytest.mark.parametrize("name", STAYS)
def test_known_operations_stay_in_blocks(name, batch):
    assert both(STAYS[name], batch, 3, 6, 4) is Blocked


@pytest.mark.parametrize("name", LEAVES)
def test_others_unpack(name):
    assert both(LEAVES[name], 5, 3, 6, 4) is torch.Tensor


@pytest.mark.parametrize("batch", [2, 32, 45])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.5}])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(batch, options, training):
    """Far from zero, where squares would cancel; running statistics move as torch moves them."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(3, **options) for _ in range(2)]
    if options.get("affine", True):
        with torch.no_grad():
            norms[0].weight.uniform_(0.5, 2)
            norms[0].bias.normal_()
    norms[1].load_state_dict(norms[0].state_dict())
    ours = iter(norms)
    kind = both(lambda x: next(ours).train(training)(x * 2.0 + 100.0), batch, 3, 4, 4, atol=3e-5)
    assert kind is Blocked
    for a, b in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(norms[0].parameters(), norms[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-3, atol=2e-3)


def test_it_looks_like_what_it_stands_for():
    x = blocked(torch.zeros(3, 2, 4, 5))
    assert x.shape == (3, 2, 4, 5)
    assert (x.size(0), x.dim(), len(x), x.numel(), x.dtype, x.device.type) == (3, 4, 3, 120, torch.float32, "cpu")
    assert repr(x) == repr(torch.zeros(3, 2, 4, 5))
    assert x.numpy().shape == (3, 2, 4, 5)
    assert blocked(x) is x


def test_dropout_drops():
    x = blocked(torch.ones(4, 3, 2, 2))
    assert F.dropout(x, 0.5, training=False).plain().eq(1).all()
    assert 0 < F.dropout(x, 0.5).plain().eq(0).sum() < x.numel()


def test_a_batch_of_one_datum_and_position_is_refused_as_torch_refuses_it():
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm2d(3)(blocked(torch.zeros(1, 3, 1, 1)))


@pytest.mark.parametrize("batch", [1, 16, 37])
@pytest.mark.parametrize("shape", [(1,), (5,), (16,), (70,), (5, 1, 1), (20, 7, 3), (3, 40)])
def test_blocks_have_the_batch_last_and_turn_back(batch, shape):
    x = torch.randn(batch, *shape)
    blocks = layout.block(x)
    rows = torch.zeros(-(-batch // 16) * 16, *shape)
    rows[:batch] = x
    assert torch.equal(blocks, rows.view(-1, 16, shape[0], torch.Size(shape[1:]).numel()).permute(0, 3, 2, 1))
    assert torch.equal(layout.unblock(blocks, [batch, *shape]), x)
