"""A sparse layer against the masked dense layer: same noise, same outputs, same gradients, whichever path runs."""

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, settings, strategies as st
from torch import nn

import leanbayes as lb
from leanbayes.kernels import library, operation
from leanbayes.kernels.blocked import Blocked, blocked
from leanbayes.kernels.layout import block
from leanbayes.layers import sparse as paths
from leanbayes.layers.bayes import BayesLayer
from leanbayes.methods.sparse import growth
from leanbayes.methods.sparse.posterior import SparseGaussian
from leanbayes.posteriors.scale import std_from_rho
from leanbayes.priors import Normal
from leanbayes.sampling import using
from tests.kernels.reference import close, doubled

compiled = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))


def sparse_layer(module, count, std=0.3):
    q = SparseGaussian.from_tensor(module.weight, count, std)
    return BayesLayer(module, {"weight": q}, {"weight": Normal()})


def plain(y):
    return y.plain() if isinstance(y, Blocked) else y


def check_all(module, x, density, patch):
    """Local reparameterisation, a whole draw and the means, by the compiled path and by hand in float64."""
    layer = sparse_layer(module, max(1, int(density * module.weight.numel())))
    q, bias = layer.posteriors["weight"], layer._parameters.get("bias")
    leaves = [x.requires_grad_(), q.loc, q.rho, bias]
    shape = layer.compute(x, q.spread(q.loc), bias).shape
    eps, grad, noise = torch.randn(shape), torch.randn(shape), q.noise()
    both = operation.both

    def given(x, mu, sigma, bias, plan, seed, batch):
        return both(x, mu, sigma, bias, plan, seed if sigma is None else block(eps), batch)

    patch.setattr(operation, "both", given)

    def by_hand(kind, absolute):
        turned = torch.abs if absolute else torch.clone
        x, loc, _, bias = doubled(leaves, absolute)
        rho = q.rho.detach().double().requires_grad_()  # whose std is positive anyway
        std = std_from_rho(rho)
        values = loc + std * turned(noise.double()) if kind == "weight" else loc
        y = layer.compute(x, q.spread(values), bias)
        if kind == "local":
            variance = layer.compute(x * x, q.spread(std.square()), None)
            some = variance > 0
            y = y + torch.where(some, torch.where(some, variance, 1.0).sqrt(), 0.0) * turned(eps.double())
        return gradients(y, [x, loc, rho, bias], turned(grad.double()))

    contexts = {
        "local": using(estimator="local"),
        "weight": using(estimator="weight", draws={id(q): noise}),
        "mean": using(mean_only=True),
    }
    for kind, context in contexts.items():
        with context:
            y = layer(x)
        assert isinstance(y, Blocked)
        three = gradients(y.plain(), leaves, grad), by_hand(kind, False), by_hand(kind, True)
        for *result, name in zip(*three, ("output", "input", "loc", "rho", "bias"), strict=False):
            if result[0] is not None:
                close(*result, f"{kind} {name}")
            else:  # at the means sigma plays no part
                assert (kind, name, result[1]) == ("mean", "rho", None)


def gradients(y, leaves, grad):
    wanted = [t for t in leaves if t is not None]
    return [y.detach(), *torch.autograd.grad(y, wanted, grad, allow_unused=True)]


@compiled
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
def test_convolutions_of_any_shape_equal_the_masked_dense_layer(data, monkeypatch):
    kernel, stride, padding = (
        data.draw(st.tuples(i, i)) for i in (st.integers(1, 4), st.integers(1, 3), st.integers(0, 2))
    )
    size = tuple(data.draw(st.integers(max(1, k - 2 * p), 7)) for k, p in zip(kernel, padding, strict=True))
    channels = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    torch.manual_seed(data.draw(st.integers(0, 2**20)))
    module = nn.Conv2d(*channels, kernel, stride, padding, bias=data.draw(st.booleans()))
    batch = data.draw(st.integers(1, 257))
    with monkeypatch.context() as patch:
        patch.setattr(paths, "DENSE_ABOVE", 1.0)
        check_all(module, torch.randn(batch, channels[0], *size), data.draw(st.floats(0.01, 0.99)), patch)


@compiled
@pytest.mark.parametrize("batch", [1, 33, 257])
def test_linear_equals_the_masked_dense_layer(batch, monkeypatch):
    torch.manual_seed(batch)
    check_all(nn.Linear(40, 30), torch.randn(batch, 40), 0.05, monkeypatch)


@compiled
def test_more_dimensions_than_two_and_none():
    torch.manual_seed(0)
    layer = sparse_layer(nn.Linear(40, 30), 60)
    x = torch.randn(3, 2, 40)
    with using(mean_only=True):
        assert torch.allclose(layer(x), layer.compute(x, layer.mean("weight"), layer.bias), atol=1e-6)
        assert torch.allclose(layer(x[0, 0]), layer(x)[0, 0], atol=1e-6)


def test_the_dense_path_has_the_distribution_it_should():
    torch.manual_seed(0)
    layer = sparse_layer(nn.Linear(6, 4).double(), 5)  # double precision has no kernel
    q, x = layer.posteriors["weight"], torch.randn(1, 6, dtype=torch.double)
    n = 5000
    y = layer(x.expand(n, 6))  # noise of its own for every datum
    mean, variance = x @ q.mean.T + layer.bias, x**2 @ q.variance.T
    assert ((y.mean(0) - mean[0]).abs() <= 5 * (variance[0] / n).sqrt() + 1e-12).all()
    assert ((y.var(0) - variance[0]).abs() <= 5 * variance[0] * (2 / n) ** 0.5 + 1e-12).all()


@compiled
def test_a_seed_repeats_a_training_pass():
    layer = sparse_layer(nn.Linear(40, 30), 60)
    x = torch.randn(4, 40)
    torch.manual_seed(3)
    first = plain(layer(x))
    assert not torch.equal(plain(layer(x)), first)
    torch.manual_seed(3)
    assert torch.equal(plain(layer(x)), first)


@compiled
def test_places_that_move_are_noticed():
    layer = sparse_layer(nn.Linear(40, 30), 60)
    q, x = layer.posteriors["weight"], torch.randn(4, 40)
    with using(mean_only=True):
        plain(layer(x))
        q.index.copy_((q.index + 1) % 1200)
        assert torch.allclose(plain(layer(x)), x @ q.mean.T + layer.bias, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Conv2d(4, 4, 3, dilation=2), "dilation"),
        (nn.Conv2d(4, 4, 3, padding="same"), "same"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), "circular"),
        (nn.Conv1d(4, 40, 3), "Conv1d"),
        (nn.Linear(40, 30).double(), "float64"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_serve_says_why_and_runs_dense(module, why):
    model = nn.Sequential(module)
    lb.bayesianize_(model, lb.SparseSubspace(density=0.05))
    reason = paths.unsuitable(model[0])
    assert reason is not None
    assert library.reason() is not None or why in reason
    x = {nn.Linear: torch.randn(2, 40), nn.Conv1d: torch.randn(2, 4, 9)}.get(type(module), torch.randn(2, 4, 9, 9))
    assert not isinstance(model(x.to(module.weight.dtype)), Blocked)


def test_high_densities_are_faster_dense():
    assert "dense" in (paths.unsuitable(sparse_layer(nn.Linear(400, 10), 2000)) or "")


@compiled
@pytest.mark.parametrize("size", [6, 12], ids=["by products", "by convolution"])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"padding": (2, 0)}, {"padding": "valid"}])
def test_the_dense_gradient_from_blocked_activations_is_autograds(options, size):
    torch.manual_seed(0)
    conv, x = nn.Conv2d(4, 5, 3, **options), torch.randn(19, 4, size, size)
    y = conv(x)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, conv.weight, grad)
    use = growth.Use.of(conv, *(growth.Activation.of(blocked(t)) for t in (x, grad)))
    assert use.plain == (y[0, 0].numel() > growth.SMALL)
    found = torch.cat([piece for _, piece in growth.gradient_pieces([use], conv.weight.shape, torch.float32)])
    torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize("mean_only", [False, True], ids=["draws", "means"])
def test_predictions_run_on_the_kernels_and_equal_the_dense_path(mean_only):
    """Whole-weight draws are made at the active places, one sparse pass each."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )
    lb.bayesianize_(model, lb.SparseSubspace(density=0.1))
    x = torch.randn(20, 3, 8, 8)
    seen = []
    model[0].register_forward_hook(lambda *args: seen.append(type(args[2])))
    options = {"samples": 4, "seed": 1, "mean_only": mean_only, "task": "classification"}
    ours = lb.predict(model, x, strategy="loop", **options)  # vmap, which "auto" takes for so little, is dense
    assert seen == [Blocked] * (1 if mean_only else 4)
    with paths.dense_path():
        dense = lb.predict(model, x, strategy="loop", **options)
    for other in (dense, lb.predict(model, x, **options)):
        torch.testing.assert_close(ours.probs, other.probs, rtol=1e-4, atol=1e-5)
