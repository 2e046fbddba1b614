"""What the tests of `extract` share."""

import copy

import torch

import leanbayes as lb


def at_means(model, x):
    with torch.no_grad(), lb.using(mean_only=True):
        return copy.deepcopy(model).eval()(x)


def of(model, x):
    with torch.no_grad():
        return model(x)


def bytes_of(model):
    return sum(t.numel() * t.itemsize for t in model.state_dict().values())
