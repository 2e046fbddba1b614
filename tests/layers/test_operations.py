import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from leanbayes.layers.operations import WEIGHT_LAYERS, operation_of, refusal


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class SameForward(nn.Linear):
    """A subclass that only names things."""


class WithBuffer(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("scale", torch.ones(1))


class WithChild(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.child = nn.ReLU()


def patched():
    module = nn.Linear(2, 2)
    module.forward = lambda x: x
    return module


def without_weight():
    module = nn.Linear(2, 2)
    del module.weight
    module.weight = torch.ones(2, 2)
    return module


REFUSED = {
    "no operation for LSTM": lambda: nn.LSTM(2, 2),
    "no operation for EmbeddingBag": lambda: nn.EmbeddingBag(2, 2),
    "no operation for Bilinear": lambda: nn.Bilinear(2, 2, 2),
    "parametrised": lambda: parametrizations.spectral_norm(nn.Linear(2, 2)),
    "shape is not known": lambda: nn.LazyLinear(2),
    "OwnForward has a forward of its own": lambda: OwnForward(2, 2),
    "Linear has a forward of its own": patched,
    "no weight parameter": without_weight,
    "max_norm": lambda: nn.Embedding(3, 2, max_norm=1.0),
    "sparse gradients": lambda: nn.Embedding(3, 2, sparse=True),
    "not floating point": lambda: nn.Linear(2, 2).to(torch.complex64),
    "submodules or buffers": WithBuffer,
    "would lose": WithChild,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_treated_is_refused_with_the_reason(reason):
    assert reason in refusal(REFUSED[reason]())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_by_hook_is_refused():
    assert "weight norm" in refusal(weight_norm(nn.Linear(2, 2)))


def test_subclasses_with_the_same_forward_are_taken():
    assert refusal(SameForward(2, 2)) is None
    assert refusal(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)) is None
    assert operation_of(SameForward(2, 2)) is operation_of(nn.Linear(2, 2))


def test_every_kind_of_weight_layer_has_an_operation():
    assert len(WEIGHT_LAYERS) == 8


def test_a_lazy_module_that_has_run_is_taken():
    module = nn.LazyLinear(2)
    module(torch.ones(1, 3))
    assert refusal(module) is None
