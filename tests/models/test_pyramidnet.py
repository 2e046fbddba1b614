"""PyramidNet: the published count, the shortcut by hand, names, and what of it can be cut out."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.convert.slicing import assert_slicing_is_masking
from torch import Tensor, nn

from leanbayes import models
from leanbayes.errors import ConfigError
from leanbayes.models.pyramidnet import PyramidBlock


def _count(modules: list[nn.Module]) -> int:
    return sum(p.numel() for m in modules for p in m.parameters())


def _by_hand(widths: list[int], classes: int) -> int:
    blocks = sum(2 * a + 9 * a * b + 2 * b + 9 * b * b + 2 * b for a, b in itertools.pairwise(widths))
    return 27 * widths[0] + 2 * widths[0] + blocks + 2 * widths[-1] + (widths[-1] + 1) * classes


def test_the_published_count() -> None:
    model = models.build("pyramidnet_cifar", num_classes=100)
    assert _count([model]) == _by_hand(list(range(16, 287, 5)), 100) == 28_511_307
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert (len(norms), _count(norms), _count([model.fc])) == (164, 49_798, 28_700)
    assert 28_511_307 + 4 * (49_798 + 28_700) == 28_825_299  # "Ensemble Model Patching", table 1: K = 5, BN + output


def test_the_small_one() -> None:
    assert _count([models.build("pyramidnet_small")]) == _by_hand(list(range(16, 53, 4)), 10) == 218_538
    # 16 + k 10 / 6 rounded
    uneven = models.build("pyramidnet_small", depth=14, alpha=10, num_classes=3)
    assert _count([uneven]) == _by_hand([16, 18, 19, 21, 23, 24, 26], 3)


def test_layers_and_shapes() -> None:
    model = models.build("pyramidnet_small", depth=14, alpha=12, width=4, num_classes=3, in_channels=1).eval()
    blocks = {name: m for name, m in model.named_modules() if isinstance(m, PyramidBlock)}
    assert list(blocks) == [f"stage{s}.{b}" for s in (1, 2, 3) for b in (0, 1)]
    assert [m.conv1.stride[0] for m in blocks.values()] == [1, 1, 2, 1, 2, 1]
    for side in (32, 30, 7):  # odd sides too: convolution and shortcut both round up
        assert model(torch.zeros(2, 1, side, side)).shape == (2, 3)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_is_a_padded_shortcut_plus_a_residual(stride: int) -> None:
    torch.manual_seed(0)
    block, x = PyramidBlock(3, 5, stride).double().eval(), torch.randn(2, 3, 6, 6).double()
    for norm in (block.bn1, block.bn2, block.bn3):
        norm.weight.data.uniform_(0.5, 2)
        norm.bias.data.normal_()

    def scaled(norm: nn.BatchNorm2d, value: Tensor) -> Tensor:
        return value * (norm.weight / (1 + norm.eps) ** 0.5)[:, None, None] + norm.bias[:, None, None]

    out = nn.functional.conv2d(scaled(block.bn1, x), block.conv1.weight, stride=stride, padding=1)
    out = scaled(block.bn3, nn.functional.conv2d(scaled(block.bn2, out).relu(), block.conv2.weight, padding=1))
    for i, j in itertools.product(range(6 // stride), repeat=2):  # the zeros of channels 3 and 4 add nothing
        patch = x[:, :, i * stride : (i + 1) * stride, j * stride : (j + 1) * stride]
        out[:, :3, i, j] += patch.mean((2, 3))
    torch.testing.assert_close(block(x), out)


def test_only_inner_channels_can_be_cut() -> None:
    """Channels of the stream meet zeros of the padding, which no slice of a weight would move along."""
    model = models.build("pyramidnet_small", depth=14, alpha=12, width=4)
    graph = assert_slicing_is_masking(model, torch.randn(2, 3, 8, 8).double())
    inner = [f"stage{s}.{b}.conv1" for s in (1, 2, 3) for b in (0, 1)]
    assert [group.name for group in graph.free] == inner
    assert graph["stage1.0.conv2"].reasons == ("goes through pad",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 111}, r"depth of 6 n \+ 2 .*received 111"),
        ({"depth": 2}, r"depth of 6 n \+ 2"),
        ({"alpha": -1}, r"alpha: expected a finite number of at least 0, received -1"),
        ({"alpha": float("nan")}, r"alpha: expected a finite number"),
        ({"width": 0}, r"width: expected a whole number of at least 1, received 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build("pyramidnet_cifar", **options)
