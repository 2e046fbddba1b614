"""Networks to attack, and one attack."""

import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.data import load
from leanbayes.evaluation.attack import Attack, perturb
from leanbayes.evaluation.pixels import Pixels
from leanbayes.likelihoods import Classification

PIXELS = Pixels(mean=(0.3,), std=(0.4,))


PLAIN = Pixels()


def trained(method=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 10))
    if method is not None:
        lb.bayesianize_(model, method)
    x, y = load("digits").train.tensors
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimiser.zero_grad()
        (F.cross_entropy(model(x), y) + lb.kl_sum(model) / len(x)).backward()
        optimiser.step()
    optimiser.zero_grad()
    return model.eval()


def run(model, x, y, pixels, start=0, targets=None, **fields):
    fields = {"step": 16.0, "iterations": 5, "samples": 3} | fields
    return perturb(
        model, x, y, config=Attack(**fields), pixels=pixels, likelihood=Classification(), start=start, targets=targets
    )


def linear(classes=4, dtype=torch.float64):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, classes)).to(dtype)
    return model, torch.rand(12, 1, 3, 3, dtype=dtype), torch.arange(12) % classes


def slope(model, inputs, classes):
    """d log softmax(W x + b)_c / dx = W_c - sum_k p_k W_k, by hand."""
    weight = model[1].weight.detach()
    probs = model(inputs).detach().softmax(1)
    return (weight[classes] - probs @ weight).reshape(inputs.shape)
