"""What `fit` says of weights that cannot learn."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.method import Method
from leanbayes.models import resnet18, resnet18_cifar
from leanbayes.training.unused import share_in_reach

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(4)


def test_a_stem_too_large_for_the_images_is_told_of() -> None:
    model = resnet18(10, width=4)
    lb.bayesianize_(model, lb.SparseSubspace(density=0.3, std=0.01))
    with pytest.warns(lb.LeanBayesWarning, match=r"layer4.0.conv1.*61% of the model's weights.*resnet18_cifar"):
        lb.fit(model, IMAGES, epochs=1, progress=False)


@pytest.mark.parametrize("method", [lb.Dropout(0.1), lb.NestedDropout(tails="uniform")])
def test_weights_that_are_not_random_count_too(method: Method) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten())
    lb.bayesianize_(model, method)
    with pytest.warns(lb.LeanBayesWarning, match=r"51% of the model's weights"):  # 8 / 9 of 144 among 252
        lb.fit(model, IMAGES, epochs=1, progress=False)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_stem_for_small_images_is_not(stride: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lb.fit(resnet18_cifar(10, width=2, stem_stride=stride), IMAGES, epochs=1, progress=False)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((1, 1), {"padding": 1}),
        ((2, 2), {"padding": 1, "stride": 2}),
        ((3, 5), {"padding": 2, "dilation": 2}),
        ((4, 4), {"padding": "same"}),
        ((2, 3), {"padding": "same", "dilation": 3}),
        ((1, 2), {"padding": 1, "padding_mode": "replicate"}),
    ],
)
def test_reach_is_where_gradients_arrive(size: tuple[int, int], options: dict[str, object]) -> None:
    conv = nn.Conv2d(2, 3, 3, **options)  # type: ignore[arg-type]
    conv(torch.randn(5, 2, *size)).square().sum().backward()
    assert conv.weight.grad is not None
    assert share_in_reach(conv, size) == pytest.approx((conv.weight.grad != 0).double().mean().item())


class Forgetful(nn.Module):
    """A layer that it calls and does not use, one that it does not call, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.called, self.left, self.frozen = (nn.Linear(4, 4) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.frozen(x)) + 0.0 * F.relu(self.called(x))


def test_parameters_without_gradients_are_named_once() -> None:
    data = torch.randn(80, 4), torch.arange(80) % 4
    with pytest.warns(lb.LeanBayesWarning, match=r"called.weight, called.bias, left.weight and 1 more") as seen:
        lb.fit(Forgetful(), data, batch_size=2, epochs=2, progress=False)
    assert len([w for w in seen if issubclass(w.category, lb.LeanBayesWarning)]) == 1


def test_members_that_wait_for_their_turn_are_not() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    lb.bayesianize_(model, lb.Ensemble(3))
    lb.fit(model, (torch.randn(90, 4), torch.arange(90) % 4), batch_size=3, epochs=1, progress=False)
