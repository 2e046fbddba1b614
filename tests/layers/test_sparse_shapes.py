"""Sparse networks end to end, on inputs and in code that the compiled path has to refuse or to follow exactly.

Whatever the dense path computes, the compiled path computes; where that raises, this raises the same or a
LeanBayesError. What may crash runs in a process of its own.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.errors import LeanBayesError
from leanbayes.kernels import library
from leanbayes.layers.bayes import BayesLayer
from leanbayes.layers.sparse import DENSE_ABOVE, dense_path, unsuitable
from tests.soak.forked import forked

pytestmark = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))


def sparse(*modules, density=0.1, **options):
    """A network whose sparse layers all have the compiled path, up to the density where that is slower."""
    model = nn.Sequential(*modules)
    lb.bayesianize_(model, lb.SparseSubspace(density=density, **options))
    layers = [layer for layer in model if isinstance(layer, BayesLayer)]
    assert density > DENSE_ABOVE or [unsuitable(layer) for layer in layers] == [None] * len(layers)
    return model


def cnn():
    return sparse(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))


def train(model, x, y):
    lb.fit(model, DataLoader(TensorDataset(x, y), batch_size=8), epochs=1)


def raised(action, dense):
    """The names of an action's exception and of its bases; empty where it raises nothing."""
    try:
        if dense:
            with dense_path():
                action()
        else:
            action()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__]
    return []


def refused_alike(action):
    """Both paths refuse; the compiled one with the same kind of error or a LeanBayesError."""
    dense, compiled = (forked(raised, action, dense) for dense in (True, False))
    assert dense, "the dense path raises nothing: not a test of a refusal"
    assert compiled, "no error"
    assert dense[0] in compiled or compiled[0] in dense or LeanBayesError.__name__ in compiled


@pytest.mark.parametrize("received", [1, 15, 17, 40, 4096])
def test_a_linear_layer_refuses_a_wrong_number_of_features(received):
    model = sparse(nn.Linear(16, 24))
    refused_alike(lambda: model(torch.randn(5, received)).sum().backward())


@pytest.mark.parametrize("received", [(2, 3, 15), (2, 3, 5, 17)], ids=str)
def test_more_dimensions_do_not_hide_it(received):
    model = sparse(nn.Linear(16, 24))
    refused_alike(lambda: model(torch.randn(received)).sum().backward())


def test_the_backward_pass_of_a_wide_layer_on_few_features_does_not_crash():
    model = sparse(nn.Linear(4096, 64))
    refused_alike(lambda: model(torch.randn(8, 16, requires_grad=True)).sum().backward())


IMAGES = {
    "larger": (4, 3, 32, 32),
    "smaller": (4, 3, 4, 4),
    "grey": (4, 1, 8, 8),
    "more channels": (4, 4, 8, 8),
    "no channels": (4, 8, 8),
}
USES = {
    "forward": lambda model, x: model(x),
    "backward": lambda model, x: model(x).sum().backward(),
    "predict": lambda model, x: lb.predict(model, x, samples=2, task="classification"),
    "predict mean": lambda model, x: lb.predict(model, x, mean_only=True, task="classification"),
    "fit": lambda model, x: train(model, x, torch.zeros(len(x), dtype=torch.long)),
    "extract": lambda model, x: lb.extract(model)(x),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("image", IMAGES)
def test_a_network_refuses_images_of_another_shape(image, use):
    model = cnn()
    refused_alike(lambda: USES[use](model, torch.randn(IMAGES[image])))


def test_a_network_works_after_a_refusal():
    def action():
        model, x = cnn(), torch.randn(4, 3, 8, 8)
        with lb.using(mean_only=True):
            before = model(x).sum().item()
            refused = raised(lambda: model(torch.randn(4, 3, 32, 32)), False)
            return before, refused, model(x).sum().item()

    before, refused, after = forked(action)
    assert refused
    assert before == after


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("channels", [4, 16])
def test_batch_norm_of_another_number_of_channels(channels, options, training, grad):
    model = sparse(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(channels, **options)).train(training)

    def action():
        with torch.set_grad_enabled(grad):
            model(torch.randn(4, 3, 6, 6)).sum().item()

    refused_alike(action)


def test_an_image_smaller_than_the_kernel():
    model = sparse(nn.Conv2d(3, 8, 5))
    refused_alike(lambda: model(torch.randn(4, 3, 4, 4)))


class Between(nn.Module):
    """A function of what comes out of a sparse layer, and a sparse layer behind it."""

    def __init__(self, kind, function):
        super().__init__()
        self.kind, self.function = kind, function
        self.first = nn.Linear(9, 20) if kind == "linear" else nn.Conv2d(3, 5, 3)
        self.last = nn.Linear(20, 20)

    def forward(self, x):
        h = self.first(x)
        if self.kind == "flattened":
            h = h.flatten(1)
        h = self.function(self, h)
        return h, self.last(h.flatten(1)) if h[0].numel() == 20 else h * 2


def computed(kind, function):
    """Outputs and gradients of a network with a function between its layers, or the kind of error."""
    torch.manual_seed(0)
    net = Between(kind, function)
    lb.bayesianize_(net, lb.SparseSubspace(density=0.2))
    assert unsuitable(net.first) is None
    assert unsuitable(net.last) is None
    x = torch.randn(7, 9) if kind == "linear" else torch.randn(7, 3, 4, 4)
    x.requires_grad_()
    try:
        with lb.using(mean_only=True):
            outputs = net(x)
        sum((torch.linspace(-1, 2, out.numel()).view(out.shape) * out).sum() for out in outputs).backward()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__]
    tensors = [*outputs, x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]
    return [torch.empty(t.shape).copy_(t.detach()).numpy() for t in tensors]


def same_on_both_paths(kind, function):
    with dense_path():
        expected = computed(kind, function)
    found = forked(computed, kind, function)
    assert not any(isinstance(item, str) for item in expected), expected
    if any(isinstance(item, str) for item in found):
        assert LeanBayesError.__name__ in found
        return
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(other), rtol=1e-4, atol=1e-5)


IN_PLACE = [
    "h.mul_(2)", "h.add_(1)", "h.sub_(0.5)", "h.div_(4)", "h.neg_()", "h.clamp_(min=0)", "h.clamp_(-0.1, 0.1)",
    "h.relu_()", "h.sigmoid_()", "h.tanh_()", "h.abs_()", "h.zero_()", "h.fill_(0.5)", "h.copy_(h.detach() * 2)",
    "h[:, 0] = 0", "h[0] = 1.5", "h[..., -1] *= 2", "h[h < 0] = 0", "h.masked_fill_(h > 0.2, 0.0)", "h += 1",
    "h -= 0.5", "h *= 3", "h /= 2", "h += h.detach()", "h.add_(h.detach(), alpha=0.5)", "F.relu(h, inplace=True)",
    "F.silu(h, inplace=True)", "F.elu(h, inplace=True)", "F.leaky_relu(h, 0.1, inplace=True)",
    "F.hardswish(h, inplace=True)", "torch.relu_(h)", "F.hardtanh(h, inplace=True)",
    "F.dropout(h, 0.5, training=False, inplace=True)", "nn.Hardswish(inplace=True)(h)", "h.flatten(1).mul_(2)",
    "h.view(len(h), -1)[:, 0] = 0", "h[:, 1:].add_(1)", "h.detach().mul_(2)",
    "h.data.add_(1)", "torch.mul(h.detach(), 2, out=h.detach())", "h.index_fill_(1, torch.tensor([0]), 0.3)",
    "h.lerp_(h.detach() + 1, 0.3)",
]  # fmt: skip


@pytest.mark.parametrize("statement", IN_PLACE)
@pytest.mark.parametrize("kind", ["conv", "linear", "flattened"])
def test_what_is_written_in_place_is_not_lost(kind, statement):
    def function(net, h):
        space = {"h": h, "F": F, "torch": torch, "nn": nn}
        exec(statement, space)
        return space["h"]

    same_on_both_paths(kind, function)


def test_logits_can_be_scaled_in_place():
    model, x = cnn(), torch.randn(4, 3, 8, 8)
    with lb.using(mean_only=True), torch.no_grad():
        logits = model(x)
        before = torch.empty(4, 10).copy_(logits)
        logits.div_(4.0)
    torch.testing.assert_close(torch.empty(4, 10).copy_(logits), before / 4)


CALLS = {
    "residual": lambda net, h: h.flatten(1) + net.last(h.flatten(1)),
    "residual of a linear layer's own input": lambda net, h: F.relu(net.last(h.flatten(1))) + h.flatten(1),
    "add with alpha": lambda net, h: torch.add(torch.ones(h.shape), h, alpha=0.5),
    "sub with alpha": lambda net, h: torch.sub(torch.ones(h.shape), h, alpha=0.5),
    "scalar minus": lambda net, h: 1 - h,
    "flatten by keyword": lambda net, h: torch.flatten(input=h, start_dim=1),
    "relu by keyword": lambda net, h: F.relu(input=h),
    "gelu by keyword": lambda net, h: F.gelu(input=h),
    "add by keyword": lambda net, h: torch.add(input=h, other=h),
    "mul by keyword": lambda net, h: torch.mul(input=h, other=torch.ones(h.shape) * 2),
    "dropout by keyword": lambda net, h: F.dropout(input=h, p=0.5, training=False),
    "flatten to dimensions": lambda net, h: h.flatten(start_dim=1, end_dim=-1),
    "hook before use": lambda net, h: _hooked(h, lambda g: g * 2) * 3,
    "hook after use": lambda net, h: (h * 3, _hooked(h, lambda g: g * 2))[0],
    "hook that clamps": lambda net, h: F.relu(_hooked(h, lambda g: g.clamp(min=0))),
    "two hooks": lambda net, h: _hooked(_hooked(h, lambda g: g + 1), lambda g: g * 2) + 1,
    "detached": lambda net, h: h.detach() * h,
    "no_grad": lambda net, h: h + _without_gradient(h),
    "inner gradient": lambda net, h: h + torch.autograd.grad((h * h).sum(), h, retain_graph=True)[0],
}


def _hooked(h, hook):
    h.register_hook(hook)
    return h


def _without_gradient(h):
    with torch.no_grad():
        return h * 2


@pytest.mark.parametrize("kind", ["conv", "linear", "flattened"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_of_every_form_follow_the_dense_path(name, kind):
    same_on_both_paths(kind, CALLS[name])


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_pooling_by_keyword(pool):
    same_on_both_paths("conv", lambda net, h: pool(input=h, kernel_size=2))


class ImageAndTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.head = nn.Conv2d(3, 5, 3), nn.Linear(9, 20), nn.Linear(20, 4)

    def forward(self, x, t):
        return self.head(self.conv(x).flatten(1) + self.fc(t))


def test_an_image_and_a_table_meet():
    torch.manual_seed(0)
    net = ImageAndTable()
    lb.bayesianize_(net, lb.SparseSubspace(density=0.2))
    inputs = torch.randn(7, 3, 4, 4), torch.randn(7, 9)
    twin = copy.deepcopy(net)
    with lb.using(mean_only=True):
        ours = net(*inputs)
        with dense_path():
            theirs = twin(*inputs)
    torch.testing.assert_close(torch.empty(7, 4).copy_(ours.detach()), theirs.detach(), rtol=1e-4, atol=1e-5)
    for out in (ours, theirs):
        (out * torch.arange(4.0)).sum().backward()
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def worked(action):
    """What an action returns; None where a LeanBayesError says why it cannot be done."""
    try:
        return action()
    except LeanBayesError:
        return None


def trains_and_predicts(make):
    """Or says in a LeanBayesError why it does not."""

    def action():
        model, x = make()
        train(model, x, torch.arange(len(x)) % 4)
        return lb.predict(model, x, samples=2, task="classification").probs.double()

    if (probs := worked(action)) is not None:
        assert probs.shape == (16, 4)
        torch.testing.assert_close(probs.sum(1), torch.ones(16).double(), rtol=0, atol=0.02)


def small(**options):
    modules = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
    return sparse(*modules, **options), torch.randn(16, 3, 8, 8)


@pytest.mark.parametrize("density", [0.1, 0.3])
def test_flipout(density):
    trains_and_predicts(lambda: small(density=density, estimator="flipout"))


@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_bfloat16(estimator):
    def make():
        model, x = small(estimator=estimator)
        return model.bfloat16(), x.bfloat16()

    trains_and_predicts(make)


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_autocast(estimator):
    model, x = small(estimator=estimator)

    def action():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), torch.arange(16) % 4) + lb.kl_sum(model) / 1000
        loss.backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return lb.predict(model, x, samples=2, task="classification").probs

    if (probs := worked(action)) is not None:
        assert probs.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
