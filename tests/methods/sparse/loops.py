"""A training loop of the own, and what else the tests of mask updates share."""

import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.training.callbacks import State, notify

X, Y = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))


def converted(method, model=None):
    model = model or network()
    lb.bayesianize_(model, method)
    return model


def weights(model):
    return [m.posteriors["weight"] for m in model.modules() if getattr(m, "subspace", None)]


class Loop:
    """A user's own loop, which can be looked into between the optimiser's step and the update."""

    def __init__(self, model, optimizer, total=None, x=X, y=Y, kl_weight=1.0):
        self.model, self.optimizer, self.x, self.y = model, optimizer, x, y
        self.hooks = lb.callbacks(model)
        self.state = State(model, optimizer, total_steps=total)
        self.elbo = lb.ELBO("classification", num_data=len(x), kl_weight=kl_weight)
        self.state.closure = lambda: self.elbo(model, model(x), y).loss
        notify(self.hooks, "fit_start", self.state)

    def step(self, look=lambda: None):
        notify(self.hooks, "before_step", self.state)
        self.optimizer.zero_grad()
        self.elbo(self.model, self.model(self.x), self.y).loss.backward()
        notify(self.hooks, "after_backward", self.state)
        self.optimizer.step()
        self.state.step += 1
        look()
        notify(self.hooks, "after_step", self.state)


def always(**options):
    return {"density": 0.1, "interval": 1, "schedule": "constant", "until": 1.0, **options}


def dense_twin(model, draws):
    """The model with dense weights that hold the same values, and their gradients at every place."""
    twin = network()
    for layer, other in zip(model, twin, strict=True):
        if isinstance(other, nn.Linear):
            q = layer.posteriors["weight"]
            other.weight.data = q.sample(draws.get(id(q))).detach()
            other.bias.data = layer.bias.detach().clone()
    F.cross_entropy(twin(X), Y).backward()
    return [m.weight.grad.flatten() for m in twin if isinstance(m, nn.Linear)]


def convolutional():
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))
