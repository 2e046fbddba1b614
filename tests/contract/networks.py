"""Small networks that every method has to treat, wide enough that one in twenty of their weights still computes."""

import torch
from torch import nn


class ConvNet(nn.Module):
    """A convolution, BatchNorm and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1, bias=False)  # BatchNorm would leave a bias no gradient
        self.bn = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.bn(self.conv(x)))[..., ::2, ::2].flatten(1))


def perceptron():
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


NETWORKS = {"convolutional": ConvNet, "perceptron": perceptron}
SHAPES = {"convolutional": (1, 4, 4), "perceptron": (6,)}


def data(name, n=8, dtype=torch.float32):
    """Inputs and labels."""
    return torch.randn(n, *SHAPES[name], dtype=dtype), torch.arange(n) % 3
