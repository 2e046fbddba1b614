"""VGG11: hand counts, names, shapes, and what of it can be cut out."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.convert.slicing import assert_slicing_is_masking
from torch import nn

from leanbayes import models
from leanbayes.data import DataSet
from leanbayes.errors import ConfigError
from leanbayes.models.for_data import fitting


def _by_hand(widths: list[int], hidden: int, classes: int, pixels: int = 1) -> int:
    convolutions = sum(9 * a * b + b for a, b in itertools.pairwise(widths))
    norms = 2 * (sum(widths[1:]) + hidden)
    return convolutions + norms + (pixels * widths[-1] + 1) * hidden + (hidden + 1) * classes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, _by_hand([3, 64, 128, 256, 256, 512, 512, 512, 512], 256, 10)),
        ({"width": 1.5}, _by_hand([3, 96, 192, 384, 384, 768, 768, 768, 768], 256, 10)),  # what the paper trains
        (
            {"width": 0.125, "num_classes": 7, "in_channels": 1, "image_size": 64, "hidden": 9},
            _by_hand([1, 8, 16, 32, 32, 64, 64, 64, 64], 9, 7, pixels=4),
        ),
    ],
)
def test_parameters_by_hand(options: dict[str, float], expected: int) -> None:
    assert sum(p.numel() for p in models.build("vgg11_bn", **options).parameters()) == expected


def test_the_small_one_by_hand() -> None:
    small = models.build("vgg_small", in_channels=1, image_size=28, hidden=9)
    assert sum(p.numel() for p in small.parameters()) == _by_hand([1, 16, 32, 64, 64], 9, 10, pixels=9)
    assert small(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(ConfigError, match=r"vgg_small\.image_size: expected a whole number of at least 8, received 7"):
        models.build("vgg_small", image_size=7)


def test_layers_and_shapes() -> None:
    model = models.build("vgg11_bn", width=0.125, num_classes=4)
    names = [name for name, _ in model.named_children()]
    assert [n for n in names if n.startswith(("conv", "dense"))] == [
        *(f"conv{i}" for i in range(1, 9)),
        "dense1",
        "dense2",
    ]
    assert names[-5:] == ["flatten", "dense1", "bn9", "act9", "dense2"]
    assert sum(isinstance(m, nn.MaxPool2d) for m in model) == 5
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 4)
    # at 32 groups, as in the paper, every ordered layer splits evenly at widths 1 and 1.5
    for width in (1, 1.5):
        wide = models.build("vgg11_bn", width=width)
        assert all(m.out_channels % 32 == 0 for m in wide if isinstance(m, nn.Conv2d))


def test_all_hidden_channels_can_be_cut() -> None:
    graph = assert_slicing_is_masking(
        models.build("vgg11_bn", width=1 / 16, hidden=6), torch.randn(2, 3, 32, 32).double()
    )
    assert [group.name for group in graph.free] == [*(f"conv{i}" for i in range(1, 9)), "dense1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 28}, r"image_size: expected a whole number of at least 32, received 28"),
        ({"width": 0}, r"width: expected a finite number of at least 0.015625, received 0"),
        ({"width": float("nan")}, r"width: expected a finite number of at least 0.015625, received nan"),
        ({"hidden": 0}, r"hidden: expected a whole number of at least 1, received 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build("vgg11_bn", **options)


@pytest.mark.parametrize(
    ("name", "sized"),
    [("vgg11_bn", True), ("mobilenet_v2", True), ("resnext_cifar", False), ("pyramidnet_small", False)],
)
def test_it_can_be_fitted_to_a_data_set(name: str, sized: bool) -> None:
    """All of these by name; those whose layers or strides depend on the size of the images are told it."""
    data = DataSet("made", "classification", {}, (1, 64, 64), ("a", "b", "c"), torch.zeros(1), torch.ones(1))
    expected = {"num_classes": 3, "in_channels": 1} | ({"image_size": 64} if sized else {})
    assert fitting(name, data) == {"name": name, "options": expected}
    small = {} if name == "pyramidnet_small" else {"width": 1 / 16}
    assert models.build(name, **expected, **small).eval()(torch.zeros(1, 1, 64, 64)).shape == (1, 3)
