"""MobileNetV2: published and hand counts, reductions, names, and what of it can be cut out."""

from __future__ import annotations

import pytest
import torch
from tests.convert.slicing import assert_slicing_is_masking
from torch import nn

from leanbayes import models
from leanbayes.errors import ConfigError

CHANNELS = [16, *[24] * 2, *[32] * 3, *[64] * 4, *[96] * 3, *[160] * 3, 320]  # a number for each block


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _by_hand(classes: int) -> int:
    total, before = 27 * 32 + 2 * 32, 32
    for number, after in enumerate(CHANNELS):
        inner = before if number == 0 else 6 * before
        total += 0 if number == 0 else before * inner + 2 * inner
        total += 9 * inner + 2 * inner + inner * after + 2 * after
        before = after
    return total + 320 * 1280 + 2 * 1280 + (1280 + 1) * classes


def test_parameters() -> None:
    assert _by_hand(1000) == 3_504_872  # torchvision.models.mobilenet_v2
    assert _count(models.build("mobilenet_v2", num_classes=1000, image_size=224)) == 3_504_872
    assert _count(models.build("mobilenet_v2")) == _by_hand(10) == 2_236_682
    # torchvision.models.mobilenet_v2(width_mult=1.4) rounds to the same channels
    wide = models.build("mobilenet_v2", width=1.4)
    assert [wide.conv1.out_channels, wide.stage2[0].project.out_channels, wide.head.out_channels] == [48, 32, 1792]


@pytest.mark.parametrize(("side", "left"), [(32, 4), (64, 4), (96, 6), (128, 4), (224, 7)])
def test_small_images_are_reduced_less(side: int, left: int) -> None:
    model = models.build("mobilenet_v2", image_size=side, width=0.1, num_classes=3).eval()
    seen: list[torch.Size] = []
    model.avgpool.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    assert model(torch.zeros(1, 3, side, side)).shape == (1, 3)
    assert seen == [(1, 1280, left, left)]


def test_layers() -> None:
    model = models.build("mobilenet_v2", image_size=224)
    depthwise = [name for name, _ in model.named_modules() if name.endswith("depthwise")]
    assert len(depthwise) == 17
    assert depthwise[:3] == ["stage1.0.depthwise", "stage2.0.depthwise", "stage2.1.depthwise"]
    strides = [m.stride[0] for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert strides.count(2) == 5
    assert [m.stride[0] for n, m in model.named_modules() if n.endswith(".0.depthwise")] == [1, 2, 2, 2, 1, 2, 1]
    # the paper's 16 groups split all expanded channels evenly
    assert all(m.out_channels % 16 == 0 for n, m in model.named_modules() if n.endswith("expand"))


def test_expanded_channels_can_be_cut() -> None:
    model = models.build("mobilenet_v2", width=0.1)
    graph = assert_slicing_is_masking(model, torch.randn(2, 3, 8, 8).double() / 100)
    blocks = [name.removesuffix(".expand") for name, _ in model.named_modules() if name.endswith("expand")]
    assert len(blocks) == 16
    for block in blocks:
        group = graph[f"{block}.expand"]
        assert not group.fixed
        assert [use.module for use in group.through] == [f"{block}.{layer}" for layer in ("bn1", "depthwise", "bn2")]
        assert [use.module for use in group.consumers] == [f"{block}.project"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, r"width: expected a finite number above 0, received 0"),
        ({"width": float("nan")}, r"width: expected a finite number above 0"),
        ({"num_classes": 0}, r"num_classes: expected a whole number of at least 1, received 0"),
        ({"image_size": 4}, r"image_size: expected a whole number of at least 8, received 4"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build("mobilenet_v2", **options)
