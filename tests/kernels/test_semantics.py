"""What torch promises of a tensor holds for a blocked one: writes, views, hooks, custom functions, copies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from leanbayes.errors import LeanBayesError
from leanbayes.kernels import (
    blocked as blocking,
    operation,  # noqa: F401  (registers the rules)
)
from leanbayes.kernels.blocked import blocked


class Through(torch.autograd.Function):
    """A straight-through sign that remembers its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0].abs() < 1)


class AsItIs(torch.autograd.Function):
    """Its input, with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2.0 + x.mean()


def written(function):
    """Apply a function for its effect on an activation that is not a leaf."""

    def run(x):
        h = x * 1.0
        function(h)
        return h

    return run


def _row(h):
    h[:, 0] = 0.5


def _view_first(h):
    view = h[:, 1:]
    h.add_(0.5)
    view.mul_(3)


def _flat(h):
    h.flatten(1).mul_(2)


def _flat_later(h):
    flat = h.flatten(1)
    h.add_(1)
    flat.clamp_(-0.5, 0.5)


def _hooked(h):
    h.register_hook(lambda g: g * 2)


def _late(x):
    h = x * 1.0
    y = F.relu(h)
    h.register_hook(lambda g: g * 5)
    return y * 2.0


def _out(h):
    torch.mul(h.detach(), 3.0, out=h.detach())


def _half(x):
    with torch.no_grad():
        y = F.relu(x)
    return y + x


def _module_hook(x):
    layer = nn.ReLU()
    layer.register_forward_hook(lambda m, args, out: out * 2.0)
    layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 7,))
    return layer(x * 1.0)


WRITES = {
    "mul_": lambda h: h.mul_(2),
    "div_": lambda h: h.div_(3),
    "add_ with alpha": lambda h: h.add_(torch.ones(h.shape), alpha=0.5),
    "clamp_": lambda h: h.clamp_(-0.3, 0.4),
    "row": _row,
    "masked_fill_": lambda h: h.masked_fill_(h > 0.5, 0.1),
    "hardswish": lambda h: F.hardswish(h, inplace=True),
    "elu by position": lambda h: F.elu(h, 1.0, True),
    "leaky": lambda h: F.leaky_relu(h, 0.2, inplace=True),
    "relu_": torch.relu_,
    "copy_": lambda h: h.copy_(torch.ones(h.shape)),
    "zero_": lambda h: h.zero_(),
    "dropout without drops": lambda h: F.dropout(h, 0.0, True, True),
    "view of one written first": _view_first,
    "flattened": _flat,
    "flattened before": _flat_later,
    "hook": _hooked,
    "out": _out,
}
READS = {
    "alpha, plain first": lambda x: torch.add(torch.ones(x.shape), x, alpha=0.5),
    "alpha": lambda x: torch.add(x, x * 2.0, alpha=-0.5),
    "one minus": lambda x: 1 - x,
    "keyword flatten": lambda x: torch.flatten(input=x, start_dim=1),
    "keyword relu": lambda x: F.relu(input=x, inplace=False),
    "custom function": Through.apply,
    "input as it is": AsItIs.apply,
    "scripted": scripted,
    "late hook": _late,
    "without gradient": _half,
    "hooks of modules": _module_hook,
    "checkpoint": lambda x: checkpoint(lambda h: F.gelu(F.relu(h) * 2.0), x, use_reentrant=False),
    "old checkpoint": lambda x: checkpoint(lambda h: F.gelu(F.relu(h) * 2.0), x, use_reentrant=True),
    "indices": lambda x: x * 0 + F.interpolate(F.max_pool2d(F.relu(x), 2, return_indices=True)[1].float(), x.shape[2:]),
    "unpooled": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "split": lambda x: torch.cat(torch.relu(x).chunk(2, 2), 3),
    "detached": lambda x: x.detach() * x,
    "quotient": lambda x: x / (x * x + 1.0),
    "permuted": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "data": lambda x: x.data * x,
}


def both(function, batch):
    torch.manual_seed(0)
    values = torch.randn(batch, 3, 4, 6)
    found = []
    for wrap in (blocked, torch.clone):
        x = values.clone().requires_grad_()
        out = function(wrap(x))
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        found.append((out.detach(), x.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.clone() * 1, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [2, 16, 21])
@pytest.mark.parametrize("name", WRITES)
def test_writes_are_seen(name, batch):
    both(written(WRITES[name]), batch)


@pytest.mark.parametrize("batch", [2, 16, 21])
@pytest.mark.parametrize("name", READS)
def test_reads_and_their_gradients(name, batch):
    both(READS[name], batch)


def test_blocks_of_different_layout_are_not_added():
    x = torch.randn(5, 4, 3, 3)
    flat, row = blocked(x).flatten(1), blocked(x.flatten(1))
    torch.testing.assert_close((flat + row) * 1, 2 * x.flatten(1))


def test_an_operation_that_returns_its_input_returns_that_very_activation():
    values = torch.randn(5, 4, 3, 3)
    with torch.inference_mode():
        h = blocked(values)
        same = F.alpha_dropout(h, 0.5, training=False)
        torch.add(h.detach(), 2, out=h.detach())
        torch.testing.assert_close(same * 1, values + 2)


def test_inference_mode_runs_on_blocks_as_no_grad_does(monkeypatch):
    model = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    model[0].running_mean.normal_()
    x = torch.randn(21, 4, 6, 6)
    with torch.no_grad():
        expected = model(blocked(x)) * 1
    monkeypatch.setattr(blocking, "_as_plain", None)  # no operation asks for an ordinary tensor
    with torch.inference_mode():
        found = model(blocked(x))
    monkeypatch.undo()
    assert isinstance(found, blocking.Blocked)
    assert torch.equal(found.plain(), expected)


def test_what_was_saved_for_the_backward_pass_and_written_to_is_refused_as_torch_refuses_it():
    x = torch.randn(3, 2, 2, 2, requires_grad=True)
    y = torch.sigmoid(blocked(x))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_gradient_can_be_kept_and_asked_for():
    x = torch.randn(3, 2, 2, 2, requires_grad=True)
    h = F.relu(blocked(x))
    y = (h * 3.0).sum()
    h.retain_grad()
    y.backward(retain_graph=True)
    kept = h.grad * 1
    (direct,) = torch.autograd.grad(y, h)
    assert torch.equal(kept, torch.full(x.shape, 3.0))
    assert torch.equal(direct * 1, torch.full(x.shape, 3.0))


def test_copies_and_what_reads_memory():
    values = torch.randn(3, 2, 2, 2)
    h = blocked(values)
    assert np.array_equal(np.asarray(h), values.numpy())
    assert h.tolist() == values.tolist()
    for made in (copy.deepcopy(h), pickle.loads(pickle.dumps(h)), copy.copy(h)):
        assert torch.equal(made, values)
    assert h.numpy(force=True).sum() == values.numpy().sum()
    with pytest.raises(RuntimeError, match="requires grad"):
        blocked(values.requires_grad_()).numpy()


def test_a_change_of_shape_in_place_is_refused():
    h = blocked(torch.randn(3, 2, 1, 1))
    with pytest.raises(LeanBayesError, match="in place"):
        h.squeeze_()
    with pytest.raises(LeanBayesError, match="in place"):
        h.transpose_(0, 1)


def test_lanes_beyond_the_batch_do_no_harm():
    """Zero times infinity: nothing of what stands beyond the batch reaches a gradient."""
    h = blocked(torch.ones(3, 2, 2, 2, requires_grad=True))
    h = (h * float("inf")).clamp(max=1.0)
    assert torch.equal(h, torch.ones(3, 2, 2, 2))
