"""What the code of a random network may refer to, besides torch: autograd functions, hooks and scripted functions."""

from __future__ import annotations

import copy
import pickle
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = [
    "AsItIs",
    "F",
    "Network",
    "Saving",
    "StraightThrough",
    "checkpoint",
    "copy",
    "nn",
    "pickle",
    "scripted_gate",
    "scripted_sum",
    "torch",
]


class Network(nn.Module):
    """Base of the random networks: keeps what statements and hooks have seen, by a number each."""

    def __init__(self):
        super().__init__()
        self.seen, self.kept = {}, {}

    def see(self, number, value):
        self.seen.setdefault(number, []).append(value)

    def keep(self, number, value):
        self.kept[number] = value


class StraightThrough(torch.autograd.Function):
    """Rounds; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx, x):
        return torch.floor(x * 4) / 4

    @staticmethod
    def backward(ctx, grad):
        return grad


class AsItIs(torch.autograd.Function):
    """Returns its input itself, and doubles the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Saving(torch.autograd.Function):
    """x * sigmoid(x), from saved tensors."""

    @staticmethod
    def forward(ctx, x):
        gate = x.sigmoid()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        return grad * gate * (1 + x * (1 - gate))


def _gate(x: Tensor, by: float) -> Tensor:
    return torch.sigmoid(x) * x + by


def _sum(x: Tensor, y: Tensor) -> Tensor:
    z = torch.relu(x)
    z += y
    return z


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.jit is deprecated, and in use
    scripted_gate = torch.jit.script(_gate)
    scripted_sum = torch.jit.script(_sum)
