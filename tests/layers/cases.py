"""Layers of every kind and option, each with an input; and the moments that their outputs must have."""

import copy

import torch
from torch import nn

import leanbayes as lb
from leanbayes.posteriors.scale import rho_from_std

CASES = {
    "linear": (lambda: nn.Linear(5, 3), (2, 5)),
    "linear-no-bias": (lambda: nn.Linear(5, 3, bias=False), (2, 5)),
    "linear-sequence": (lambda: nn.Linear(4, 3), (2, 3, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 7)),
    "conv1d-dilated-same": (lambda: nn.Conv1d(2, 3, 3, dilation=2, padding="same"), (2, 2, 7)),
    "conv1d-circular": (lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), (2, 2, 5)),
    "conv2d-non-square": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 2, 5, 4)),
    "conv2d-valid-no-bias": (lambda: nn.Conv2d(2, 3, 2, padding="valid", bias=False), (2, 2, 4, 4)),
    "conv2d-same-even": (lambda: nn.Conv2d(2, 2, (2, 4), padding="same"), (2, 2, 4, 5)),
    "conv2d-reflect": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 2, 4, 4)),
    "conv2d-replicate": (lambda: nn.Conv2d(2, 2, 3, padding=2, padding_mode="replicate"), (2, 2, 3, 3)),
    "conv2d-circular": (lambda: nn.Conv2d(2, 2, 3, padding=(1, 2), padding_mode="circular"), (2, 2, 4, 4)),
    "conv2d-dilated": (lambda: nn.Conv2d(2, 3, 2, dilation=(2, 3)), (2, 2, 5, 5)),
    "conv2d-groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (2, 4, 3, 3)),
    "conv2d-depthwise": (lambda: nn.Conv2d(3, 6, 3, groups=3), (2, 3, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 2, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1)), (2, 2, 2, 3, 3)),
    "conv3d-replicate-groups": (
        lambda: nn.Conv3d(2, 2, 2, groups=2, padding=1, padding_mode="replicate"),
        (1, 2, 2, 2, 2),
    ),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 2, 4)),
    "transposed1d-no-bias": (lambda: nn.ConvTranspose1d(2, 3, 4, bias=False), (2, 2, 3)),
    "transposed2d": (lambda: nn.ConvTranspose2d(2, 3, (3, 2), stride=(2, 1), output_padding=(1, 0)), (2, 2, 3, 3)),
    "transposed2d-groups": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (2, 4, 2, 3)),
    "transposed2d-depthwise-dilated": (lambda: nn.ConvTranspose2d(3, 3, 2, groups=3, dilation=2), (2, 3, 2, 2)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=2, padding=(0, 1, 0)), (1, 2, 2, 2, 2)),
}
EMBEDDINGS = {
    "embedding": lambda: nn.Embedding(5, 3),
    "embedding-padding": lambda: nn.Embedding(5, 3, padding_idx=1),
}


def converted(module, method=None, dtype=torch.float64):
    """A Bayesian layer with a different std for every weight."""
    wrapped = nn.Sequential(copy.deepcopy(module)).to(dtype)
    lb.bayesianize_(wrapped, method or lb.MeanField())
    for q in wrapped[0].posteriors.values():
        if hasattr(q, "rho"):
            q.rho.data = rho_from_std(torch.rand_like(q.rho) * 0.5 + 0.1)
    return wrapped[0]


def plain(module, values, dtype=torch.float64):
    """The module with other values in its parameters."""
    other = copy.deepcopy(module).to(dtype)
    for name, parameter in other._parameters.items():
        if parameter is not None:
            parameter.data = values(name).detach().clone()
    return other


def moments(module, layer, x):
    """Mean and variance of every output element in closed form, computed by torch's own modules."""
    q = layer.posteriors
    zero = torch.zeros((), dtype=torch.float64)

    def variance(name):
        return q[name].std.square() if name in q else zero.expand(layer._parameters[name].shape)

    mean = plain(module, lambda name: q[name].mean if name in q else layer._parameters[name])(x)
    if isinstance(module, nn.Embedding):
        squares = variance("weight").clone()
        if module.padding_idx is not None:
            squares[module.padding_idx] = 0
        return mean.detach(), squares[x].detach()
    return mean.detach(), plain(module, variance)(x.square()).detach()


def inputs_of(shape):
    """Inputs of mixed signs, with an exact zero among them."""
    x = torch.randn(shape, dtype=torch.float64)
    x.view(-1)[0] = 0.0
    return x
