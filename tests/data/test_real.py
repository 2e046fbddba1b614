"""The real files, where LEANBAYES_DATA points at them; every set that is there is read and its known size checked."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from leanbayes.data import DataSet, load, names
from leanbayes.errors import DataError

pytestmark = pytest.mark.skipif(not os.environ.get("LEANBAYES_DATA"), reason="LEANBAYES_DATA is not set")

SIZES = {
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "kmnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "pneumoniamnist": (4_708, 524, 624),
    "uci/boston": (455, 51),
    "uci/concrete": (927, 103),
    "uci/energy": (691, 77),
    "uci/kin8nm": (7_373, 819),
    "uci/naval": (10_741, 1_193),
    "uci/power": (8_611, 957),
    "uci/protein": (41_157, 4_573),
    "uci/wine": (1_439, 160),
    "uci/yacht": (277, 31),
}
MEANS = {"mnist": [0.1307], "fashion-mnist": [0.2860], "cifar10": [0.4914, 0.4822, 0.4465]}
STDS = {"mnist": [0.3081], "fashion-mnist": [0.3530], "cifar10": [0.2470, 0.2435, 0.2616]}


def load_or_skip(name: str, **options: Any) -> DataSet:
    try:
        return load(name, download=False, **options)
    except DataError as error:
        if "received none" in str(error):
            pytest.skip(f"{name} is not in LEANBAYES_DATA")
        raise


def test_real_sizes_are_listed_for_every_set_with_a_known_one() -> None:
    others = {"digits", "blobs", "svhn", "lidc", *(name for name in names() if name.startswith("not-digits/"))}
    assert SIZES.keys() | others == names().keys()


@pytest.mark.parametrize("name", SIZES)
def test_real_set(name: str) -> None:
    loaded = load_or_skip(name, val_fraction=0)
    assert tuple(len(part) for part in loaded.parts.values()) == SIZES[name]
    inputs, targets = loaded.train.tensors
    assert inputs.shape[1:] == loaded.input_shape
    assert bool(torch.isfinite(inputs).all())
    if loaded.num_classes:
        assert len(torch.unique(targets)) == loaded.num_classes
    if name in MEANS:
        torch.testing.assert_close(loaded.mean, torch.tensor(MEANS[name]), atol=1e-4, rtol=0)
        torch.testing.assert_close(loaded.std, torch.tensor(STDS[name]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "shape"), [("svhn", (3, 32, 32)), ("lidc", (1, 64, 64))])
def test_real_set_of_which_there_are_several_versions(name: str, shape: tuple[int, ...]) -> None:
    loaded = load_or_skip(name, parts="test", normalise=False)
    assert loaded.input_shape == shape
    assert len(loaded.test) > 2_000


@pytest.mark.parametrize("name", [name for name in SIZES if name.startswith("uci/")])
def test_real_uci_splits(name: str) -> None:
    last = 4 if name == "uci/protein" else 19
    first, other = (load_or_skip(name, split=split).test.tensors[1] for split in (0, last))
    assert not torch.equal(first, other)
    with pytest.raises(DataError, match=f"expected a split from 0 to {last}, received 20"):
        load(name, split=20, download=False)
