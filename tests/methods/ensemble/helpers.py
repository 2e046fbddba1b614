"""What the tests of ensembles share."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.training.callbacks import State, notify

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


INNER = {"plain": None, "mean-field": lb.MeanField(std=0.1), "dropout": lb.Dropout(0.3), "variance": lb.Variance()}


def small():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batches(count, n=16):
    return [(torch.randn(n, 4), torch.randint(3, (n,))) for _ in range(count)]


def train(model, data, make):
    """A user's own loop, the noise of every batch by its number; returns the optimiser."""
    optimiser, elbo = make(model.parameters()), lb.ELBO("classification", num_data=100)
    hooks, state = lb.callbacks(model), State(model, optimiser)
    model.train()
    for number, (x, y) in data:
        notify(hooks, "before_step", state)
        optimiser.zero_grad()
        torch.manual_seed(number)
        elbo(model, model(x), y).loss.backward()
        notify(hooks, "after_backward", state)
        optimiser.step()
        notify(hooks, "after_step", state)
    return optimiser
