"""Shapes and counts that others have published."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from torch import nn

from leanbayes import models
from leanbayes.errors import ConfigError


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    vectors = dict.fromkeys((f"{name}.{key}" for key in ("weight", "bias", "running_mean", "running_var")), (width,))
    return {**vectors, f"{name}.num_batches_tracked": ()}


def _torchvision_resnet18() -> dict[str, tuple[int, ...]]:
    """The state dict of torchvision.models.resnet18, written out."""
    expected = {"conv1.weight": (64, 3, 7, 7), **_norm("bn1", 64)}
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            at = f"layer{stage}.{block}"
            expected[f"{at}.conv1.weight"] = (width, before, 3, 3)
            expected |= _norm(f"{at}.bn1", width)
            expected[f"{at}.conv2.weight"] = (width, width, 3, 3)
            expected |= _norm(f"{at}.bn2", width)
            if before != width:
                expected[f"{at}.downsample.0.weight"] = (width, before, 1, 1)
                expected |= _norm(f"{at}.downsample.1", width)
            before = width
    return {**expected, "fc.weight": (1000, 512), "fc.bias": (1000,)}


def test_resnet18_loads_torchvision_checkpoints() -> None:
    model, expected = models.build("resnet18"), _torchvision_resnet18()
    assert len(expected) == 122
    assert list(model.state_dict()) == list(expected)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == expected
    assert _count(model) == 11_689_512


def test_resnet18_reduces_images_by_32() -> None:
    model = models.build("resnet18", width=4, num_classes=7).eval()
    features = nn.Sequential(*list(model.children())[:-2])
    assert features(torch.zeros(1, 3, 64, 96)).shape == (1, 32, 2, 3)
    assert model(torch.zeros(1, 3, 64, 96)).shape == (1, 7)


def test_resnet18_for_small_images() -> None:
    model = models.build("resnet18_cifar")
    assert _count(model) == 11_173_962
    assert _count(models.build("resnet18_cifar", num_classes=100)) == 11_220_132
    small = models.build("resnet18_cifar", width=4, in_channels=1)
    assert small(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert _count(small) < 50_000
    assert small.state_dict().keys() == model.state_dict().keys()


def test_lenet5() -> None:
    assert _count(models.build("lenet5")) == 520 + 25_050 + 400_500 + 5_010
    bare = models.build("lenet5", bias=False, batch_norm=True)
    assert _count(bare) == 500 + 25_000 + 400_000 + 5_000 + 2 * (20 + 50 + 500)
    assert [type(m).__name__ for m in bare[:4]] == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert models.build("lenet5", in_channels=3, image_size=32, num_classes=4)(torch.zeros(2, 3, 32, 32)).shape == (
        2,
        4,
    )


def test_lenet5_of_variance_networks() -> None:
    model = models.build("lenet5", bias=False, batch_norm=True, activation="abs")
    layers = ["conv1", "bn1", "act1", "pool1", "conv2", "bn2", "act2", "pool2", "flatten", "dense1", "bn3", "act3"]
    assert [name for name, _ in model.named_children()] == [*layers, "dense2"]
    assert (model.dense1.in_features, model.dense1.out_features) == (800, 500)
    for layer in (model.conv1, model.conv2, model.dense1, model.dense2):
        bound = layer.weight[0].numel() ** -0.5  # W ~ U(+-1/sqrt(fan-in))
        assert layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    four = models.build("lenet5", batch_norm="dense")
    assert [name for name, m in four.named_children() if "BatchNorm" in type(m).__name__] == ["bn3"]
    assert _count(four) == 431_080 + 1_000
    x = torch.tensor([-2.0, 3.0])
    assert model.act3(x).tolist() == [2.0, 3.0]
    assert isinstance(model.act2, nn.ReLU)
    assert isinstance(models.build("lenet5", activation="softplus").act3, nn.Softplus)


def test_vgg_like() -> None:
    model = models.build("vgg_like")
    widths = [3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6]
    convolutions = sum(9 * a * b + b for a, b in itertools.pairwise(widths))
    norms = 2 * (sum(widths[1:]) + 512)
    assert _count(model) == convolutions + norms + 512 * 512 + 512 + 512 * 10 + 10 == 14_991_946
    names = [name for name, _ in model.named_children()]
    assert sum(name.startswith("conv") for name in names) == 13
    assert names[names.index("conv11") :][:4] == ["conv11", "bn11", "act11", "drop11"]
    rates = {name: m.p for name, m in model.named_children() if isinstance(m, nn.Dropout)}
    middle = dict.fromkeys((f"drop{n}" for n in (3, 5, 6, 8, 9, 11, 12)), 0.4)
    assert rates == {"drop1": 0.3, **middle, "drop13": 0.5, "drop14": 0.5}
    # "Variance Networks" has none in the last stage
    theirs = models.build("vgg_like", dropout_last=False)
    assert {n for n, _ in model.named_children()} - {n for n, _ in theirs.named_children()} == {"drop11", "drop12"}
    small = models.build("vgg_like", width=0.125, dropout=False, activation="abs", in_channels=1, num_classes=4)
    assert small(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    assert small.conv13.out_channels == small.dense1.out_features == 64
    assert not any(isinstance(m, nn.Dropout) for m in small.modules())
    large = models.build("vgg_like", width=0.125, image_size=64)
    assert large(torch.zeros(2, 3, 64, 64)).shape == (2, 10)


def test_the_channel_graph_follows_the_new_networks() -> None:
    from leanbayes.convert.channels import channel_graph

    for name, size, free in (("lenet5", 28, 3), ("vgg_like", 32, 14)):
        options = {"batch_norm": True} if name == "lenet5" else {"width": 0.125}
        model = models.build(name, activation="abs", **options)
        x = torch.zeros(2, 1 if name == "lenet5" else 3, size, size)
        assert len(channel_graph(model, x).free) == free


def test_mlp() -> None:
    model = models.build("mlp", in_features=6, hidden=(5, 4), out_features=3, batch_norm=True, dropout=0.5, bias=False)
    kinds = ["Flatten", *(["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 2), "Linear"]
    assert [type(m).__name__ for m in model] == kinds
    assert model(torch.zeros(2, 3, 2)).shape == (2, 3)
    assert _count(models.mlp(6, 5, 3)) == _count(models.mlp(6, [5], 3)) == 53
    assert isinstance(models.mlp(6, 5, 3, activation="tanh")[2], nn.Tanh)
    assert len(models.mlp(6, (), 3)) == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg", {}, r"expected one of .*lenet5, mlp, .*resnet18_cifar, .*vgg_like, vgg_small, received 'vgg'"),
        ("lenet5", {"depth": 3}, r"unexpected keyword argument 'depth'; its options: .*batch_norm"),
        ("mlp", {}, r"missing a required argument: 'in_features'"),
        (
            "mlp",
            {"in_features": 0, "hidden": 3, "out_features": 1},
            r"in_features: expected a whole number",
        ),
        (
            "mlp",
            {"in_features": 2, "hidden": 3, "out_features": 1, "activation": "sine"},
            r"'tanh', 'gelu', 'silu'",
        ),
        ("lenet5", {"activation": "sine"}, r"'relu', 'softplus', 'abs', received 'sine'"),
        ("lenet5", {"batch_norm": "conv"}, r"one of True, False, 'dense', received 'conv'"),
        ("vgg_like", {"image_size": 28}, r"image_size: expected a whole number of at least 32, received 28"),
        ("vgg_like", {"width": 0}, r"width: expected a finite number of at least 0.015625, received 0"),
        ("lenet5", {"image_size": 8}, r"image_size: expected a whole number of at least 16, received 8"),
        ("resnet18_cifar", {"width": 0}, r"width: expected a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.build(name, **options)


def test_names_come_without_torch() -> None:
    code = "import sys, leanbayes.models as m; assert 'lenet5' in m.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError):
        models.nothing
