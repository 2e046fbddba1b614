"""Small networks that the tests of `predict` share."""

import torch
from torch import nn

import leanbayes as lb


class Prefixed(nn.Module):
    """A deterministic convolution with BatchNorm, then a random head; it counts what passes through."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.features(x))


def images(n=7):
    return torch.randn(n, 1, 4, 4)


def prefixed(std=0.3):
    model = Prefixed()
    lb.bayesianize_(model, {"head": lb.MeanField(std=std)})
    return model


def mlp(method=None, outputs=3):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))
    lb.bayesianize_(model, method or lb.MeanField(std=0.3))
    return model


def close(a, b):
    names = ["mean", "variance", "aleatoric", "epistemic"]
    names += ["energies"] if a.energies is not None and b.energies is not None else []
    return all(torch.allclose(getattr(a, n), getattr(b, n), atol=1e-6) for n in names)
