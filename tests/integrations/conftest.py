"""What the tests of trainers share: data in one order, and how far two models are apart."""

import pytest
import torch

import leanbayes as lb


def state(model):
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


@pytest.fixture
def distance():
    """The largest difference between the tensors of two models."""

    def measure(one, other):
        ours, theirs = state(one), state(other)
        assert ours.keys() == theirs.keys()
        return max(float((ours[k].double() - theirs[k].double()).abs().max()) for k in ours)

    return measure


@pytest.fixture
def turns():
    """A callback that trains patches and shared parameters in turn, and writes down whose turn it was."""

    class Turns(lb.CoordinateDescent):
        def __init__(self):
            super().__init__(every=2, unit="step")
            self.taken = []

        def after_backward(self, state):
            super().after_backward(state)
            self.taken.append(self.turn(state))

    return Turns()
