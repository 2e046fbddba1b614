"""ResNeXt: published and hand counts, names, shapes, and what of it can be cut out."""

from __future__ import annotations

import pytest
import torch
from tests.convert.slicing import assert_slicing_is_masking
from torch import nn

from leanbayes import models
from leanbayes.errors import ConfigError


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _by_hand(depth: int, cardinality: int, base_width: int, stem: int, classes: int) -> int:
    total, before = 27 * stem + 2 * stem, stem
    for stage in range(3):
        each, after = base_width * 2**stage, 4 * stem * 2**stage
        inner = cardinality * each
        for block in range((depth - 2) // 9):
            total += before * inner + cardinality * 9 * each * each + inner * after + 2 * (2 * inner + after)
            total += before * after + 2 * after if block == 0 else 0
            before = after
    return total + (before + 1) * classes


def test_parameters() -> None:
    assert _count(models.build("resnext_cifar")) == _by_hand(29, 8, 64, 64, 10)
    small = models.build("resnext_cifar", depth=20, cardinality=4, base_width=8, width=0.25, num_classes=3)
    assert _count(small) == _by_hand(20, 4, 2, 16, 3)
    # Xie et al. report 34.4M for 29, 8x64d and 68.1M for 16x64d
    assert _by_hand(29, 8, 64, 64, 10) == pytest.approx(34.4e6, rel=2e-3)
    assert _by_hand(29, 16, 64, 64, 10) == pytest.approx(68.1e6, rel=2e-3)


def test_layers_and_shapes() -> None:
    model = models.build("resnext_cifar", depth=20, cardinality=2, width=1 / 16, num_classes=5, in_channels=1)
    grouped = {name: m for name, m in model.named_modules() if name.endswith("grouped")}
    assert list(grouped) == [f"stage{s}.{b}.grouped" for s in (1, 2, 3) for b in (0, 1)]
    assert all(m.groups == 2 for m in grouped.values())
    for side in (32, 64):
        features = nn.Sequential(*list(model.children())[:-2])
        assert features(torch.zeros(1, 1, side, side)).shape == (1, 64, side // 4, side // 4)
        assert model.eval()(torch.zeros(2, 1, side, side)).shape == (2, 5)


def test_inner_channels_can_be_cut_evenly() -> None:
    model = models.build("resnext_cifar", depth=11, cardinality=2, width=1 / 16)
    graph = assert_slicing_is_masking(model, torch.randn(2, 3, 8, 8).double())
    for stage in (1, 2, 3):
        for layer in ("reduce", "grouped"):  # in front of and behind the grouped convolution
            group = graph[f"stage{stage}.0.{layer}"]
            assert [(c.kind, c.runs) for c in group.constraints] == [("equal", 2)]
            assert not group.fixed
    # the stream: one group a stage, because additions tie what they add
    assert len(graph.free) == 6 + 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 30}, r"depth of 9 n \+ 2 .*received 30"),
        ({"depth": 2}, r"depth of 9 n \+ 2"),
        ({"cardinality": 0}, r"cardinality: expected a whole number of at least 1, received 0"),
        ({"width": 0.1, "base_width": 4}, r"1/4 or more.*received 0.1"),
        ({"width": float("nan")}, r"1/64 or more.*received nan"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build("resnext_cifar", **options)
