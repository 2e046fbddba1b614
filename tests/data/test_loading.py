from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from leanbayes import batches
from leanbayes.data import DataSet, load, loaders
from leanbayes.errors import DataError

from .conftest import write_cifar10, write_idx_set


@pytest.mark.parametrize("parts", ["train", "test", ("train", "val"), ["val"], ("train", "val", "test")])
def test_parts_are_the_same_alone_or_together(parts: str | list[str]) -> None:
    whole, some = load("digits"), load("digits", parts=parts)
    assert list(some.parts) == ([parts] if isinstance(parts, str) else list(parts))
    for part, tensors in some.parts.items():
        assert torch.equal(tensors.tensors[0], whole.parts[part].tensors[0])


def test_a_part_that_is_not_there_says_how_to_get_it() -> None:
    with pytest.raises(DataError, match=r"digits: expected a val part, received a data set of train, test alone"):
        load("digits", val_fraction=0).val


@pytest.mark.parametrize(
    ("name", "part", "has"), [("digits", "val", "train, test"), ("not-digits/noise", "train", "test")]
)
def test_asking_for_nothing_that_is_there(name: str, part: str, has: str) -> None:
    with pytest.raises(DataError, match=f"{name}: expected parts= of {has}, which it has, received '{part}'"):
        load(name, parts=part, val_fraction=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": "validation"}, "expected parts= of 'train', 'val', 'test', received 'validation'"),
        ({"parts": []}, "expected parts="),
        ({"val_fraction": 1}, "val_fraction: expected a finite number of at least 0 and below 1, received 1"),
        ({"val_fraction": -0.1}, "val_fraction: expected a finite number"),
        ({"val_fraction": float("nan")}, "val_fraction: expected a finite number"),
        ({"val_fraction": "0.1"}, "val_fraction: expected a finite number"),
        ({"val_fraction": True}, "val_fraction: expected a finite number"),
        ({"val_fraction": 1e-6}, "val_fraction: expected to leave data on both sides"),
        ({"val_fraction": 0.99999}, "val_fraction: expected to leave data on both sides"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"seed": 0.5}, "seed: expected a whole number"),
        ({"normalise": "yes"}, "normalise: expected True, False or a DataSet, received 'yes'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load("digits", **arguments)  # type: ignore[arg-type]


def test_out_of_domain_data_take_the_statistics_of_the_domain(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "MNIST" / "raw", seed=0)
    write_idx_set(tmp_path / "FashionMNIST" / "raw", seed=1)
    write_cifar10(tmp_path / "cifar-10-batches-py")
    mnist = load("mnist", root=tmp_path)
    (tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").unlink()  # not needed
    fashion = load("fashion-mnist", root=tmp_path, parts="test", normalise=mnist, download=False)
    raw = load("fashion-mnist", root=tmp_path, parts="test", normalise=False, download=False)
    torch.testing.assert_close(fashion.test.tensors[0], (raw.test.tensors[0] - mnist.mean) / mnist.std)
    with pytest.raises(DataError, match=r"cifar10: expected normalise= a data set of 3 channels .* 'mnist' of 1"):
        load("cifar10", root=tmp_path, normalise=mnist)


def test_statistics_are_per_channel(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    loaded = load("cifar10", root=tmp_path, val_fraction=0)
    raw = load("cifar10", root=tmp_path, val_fraction=0, normalise=False).train.tensors[0]
    torch.testing.assert_close(loaded.mean, raw.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(loaded.std, raw.std(dim=(0, 2, 3), correction=0))


def test_loaders_shuffle_the_training_part_alone_and_repeat() -> None:
    digits = load("digits")
    one, two = loaders(digits, batch_size=100), loaders(digits, batch_size=100)
    assert list(one) == ["train", "val", "test"]
    assert all(isinstance(loader, DataLoader) for loader in one.values())
    first, again = next(iter(one["train"])), next(iter(two["train"]))
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], digits.train.tensors[1][:100])
    assert not torch.equal(first[1], next(iter(loaders(digits, batch_size=100, seed=1)["train"]))[1])
    assert torch.equal(torch.cat([y for _, y in one["test"]]), digits.test.tensors[1])
    assert sum(len(y) for _, y in one["train"]) == len(digits.train)


def test_unlabelled_batches_are_inputs_alone() -> None:
    inputs, targets = batches.split(next(iter(loaders(load("not-digits/noise"), 50)["test"])))
    assert inputs.shape == (50, 1, 8, 8)
    assert targets is None


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_a_batch_size_that_is_none(size: object) -> None:
    with pytest.raises(DataError, match="batch_size: expected a whole number of at least 1"):
        loaders(load("digits"), size)  # type: ignore[arg-type]


def test_a_data_set_cannot_be_changed_by_accident() -> None:
    digits = load("digits")
    assert isinstance(digits, DataSet)
    with pytest.raises(AttributeError):
        digits.name = "other"  # type: ignore[misc]
