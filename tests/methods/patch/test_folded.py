"""BatchNorm folded over samples against one sample after the other."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes.methods.patch import folded

SAMPLES, CHANNELS = 4, 3


def arguments(shape, own):
    """Inputs, statistics, weight and bias; those in ``own`` differ between samples."""
    torch.manual_seed(0)
    shapes = {"x": shape, "mean": (CHANNELS,), "var": (CHANNELS,), "weight": (CHANNELS,), "bias": (CHANNELS,)}
    made = {n: torch.rand((SAMPLES, *s) if n in own else s) + 0.5 for n, s in shapes.items()}
    return tuple(made.values()), tuple(0 if n in own else None for n in shapes)


@pytest.mark.parametrize("shape", [(5, CHANNELS, 2, 6), (5, CHANNELS, 7), (1, CHANNELS, 1, 1)])
@pytest.mark.parametrize(
    "own", [("weight", "bias"), ("x", "weight", "bias"), ("x", "bias"), ("mean", "var", "weight", "bias"), ("weight",)]
)
def test_it_is_a_loop_over_samples(shape, own):
    values, dims = arguments(shape, own)
    calls = []

    def one(*each):
        out = folded.batch_norm(*each, 1e-5)
        calls.append(out is not None)
        return out

    found = torch.func.vmap(one, dims)(*values)
    assert calls == [True]
    for s in range(SAMPLES):
        x, mean, var, weight, bias = (v if d is None else v[s] for v, d in zip(values, dims, strict=True))
        assert torch.allclose(found[s], F.batch_norm(x, mean, var, weight, bias), atol=1e-5)


def test_gradients_pass_through():
    values, dims = arguments((2, CHANNELS, 4), ("weight", "bias"))
    x = values[0].requires_grad_()
    both = []
    for norm in (
        lambda *v: folded.batch_norm(*v, 1e-5),
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
    ):
        out = torch.func.vmap(norm, dims)(*values)
        both.append(torch.autograd.grad(out.square().sum(), x)[0])
    assert torch.allclose(*both, rtol=1e-4)


def test_it_leaves_to_torch_what_it_does_not_serve():
    x, mean, var, weight, bias = arguments((2, CHANNELS, 4), ())[0]
    assert folded.batch_norm(x, mean, var, weight, bias, 1e-5) is None  # no vmap
    assert not folded.running()
    seen = []

    def shared(x, weight):
        seen.append(folded.batch_norm(x, mean, var, weight, None, 1e-5))
        return x

    torch.func.vmap(shared, (0, None))(x.expand(SAMPLES, *x.shape), weight)  # nothing differs but the inputs
    torch.func.vmap(shared, (None, 0))(x[:, :, 0], weight.expand(SAMPLES, CHANNELS))  # no positions to run along
    assert seen == [None, None]
