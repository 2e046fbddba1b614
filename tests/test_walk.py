"""The walk over modules sees what torch's does, in its order."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.sampling import taking_part
from leanbayes.walk import modules


def test_it_is_that_of_torch_for_tied_and_missing_modules():
    tied = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(tied, nn.Dropout(), nn.Sequential(tied, tied[0]))
    model.register_module("nothing", None)
    model[2].itself = tied
    assert [id(m) for m in modules(model)] == [id(m) for m in model.modules()]


def test_members_that_rest_take_no_part():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    lb.bayesianize_(model, lb.Ensemble(3, method=lb.MeanField()))
    model(torch.zeros(1, 2))
    resting = [part for layer in (model[0], model[2]) for member in layer.resting_members for part in member.modules()]
    assert resting
    assert {id(m) for m in taking_part(model)} == {id(m) for m in model.modules()} - {id(m) for m in resting}
