from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from leanbayes.data import load
from leanbayes.data.splits import hold_out, hold_out_groups

NOT_DIGITS = [f"not-digits/{kind}" for kind in ("letters", "noise", "photos", "shuffled")]


def rows(tensor: torch.Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in tensor}


def test_sizes_strata_and_no_overlap() -> None:
    digits = load("digits", normalise=False)
    assert [len(part) for part in digits.parts.values()] == [1294, 144, 359]
    everything = np.bincount(load_digits().target)
    for part in digits.parts.values():
        counts = torch.bincount(part.tensors[1], minlength=10).numpy()
        assert np.abs(counts - everything * len(part) / 1797).max() <= 1.5
    # No image occurs twice among the 1,797, so contents tell the parts apart.
    contents = [rows(part.tensors[0]) for part in digits.parts.values()]
    assert len(set().union(*contents)) == sum(map(len, contents)) == 1797
    inputs, targets = digits.test.tensors
    of = {image.astype(np.float32).tobytes(): label for image, label in zip(*load_digits(return_X_y=True), strict=True)}
    assert all(of[(x * 16).reshape(64).numpy().tobytes()] == y for x, y in zip(inputs, targets.tolist(), strict=True))


def test_the_same_again_and_the_test_part_whatever_the_seed() -> None:
    first, again, other = load(seed=0), load(seed=0), load(seed=1)
    for part in first.parts:
        assert all(torch.equal(a, b) for a, b in zip(first.parts[part].tensors, again.parts[part].tensors, strict=True))
    assert torch.equal(first.test.tensors[1], other.test.tensors[1])
    assert not torch.equal(first.val.tensors[1], other.val.tensors[1])


def test_normalised_by_the_training_part() -> None:
    raw, digits = load(normalise=False), load()
    inputs = digits.train.tensors[0]
    assert float(raw.train.tensors[0].min()) == 0
    assert float(raw.train.tensors[0].max()) == 1
    assert abs(float(inputs.mean())) < 1e-5
    assert abs(float(inputs.std(correction=0)) - 1) < 1e-5
    torch.testing.assert_close(digits.test.tensors[0] * digits.std + digits.mean, raw.test.tensors[0])


@pytest.mark.parametrize("name", NOT_DIGITS)
def test_not_digits(name: str) -> None:
    digits, ood, again = (
        load("digits", normalise=False),
        load(name, normalise=False),
        load(name, normalise=False, seed=7),
    )
    (inputs,) = ood.test.tensors
    assert inputs.shape == (360, 1, 8, 8)
    assert (ood.task, ood.num_classes, ood.input_shape) == ("unlabelled", None, digits.input_shape)
    assert torch.equal(inputs, again.test.tensors[0])
    assert torch.equal((inputs * 16).round() / 16, inputs)  # the digits' 17 grey levels
    assert 0 <= float(inputs.min()) <= float(inputs.max()) <= 1
    assert not rows(inputs) & set().union(*(rows(part.tensors[0]) for part in digits.parts.values()))
    assert len(rows(inputs)) > 300
    with pytest.raises(ValueError, match=f"{name}: expected a train part, received a data set of test alone"):
        ood.train


@pytest.mark.parametrize("name", NOT_DIGITS)
def test_not_digits_are_normalised_as_the_digits_are(name: str) -> None:
    for seed in (0, 1):
        digits, ood = load("digits", seed=seed), load(name, seed=seed)
        assert torch.equal(digits.mean, ood.mean)
        assert torch.equal(digits.std, ood.std)
        explicit = load(name, normalise=digits)
        assert torch.equal(explicit.test.tensors[0], ood.test.tensors[0])


def test_letters_are_as_dark_as_digits() -> None:
    """A fair out-of-domain set: brightness alone does not betray it."""
    digits, letters = load("digits", normalise=False), load("not-digits/letters", normalise=False)
    difference = letters.test.tensors[0].mean() - digits.test.tensors[0].mean()
    assert abs(float(difference)) < 0.5 * float(digits.test.tensors[0].mean(dim=(1, 2, 3)).std()) + 0.05


def test_hold_out_is_exact_and_even() -> None:
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    kept, held = hold_out(labels, 0.1, seed=3)
    assert np.bincount(labels[held]).tolist() == [5, 3, 2]
    assert sorted([*kept, *held]) == list(range(100))
    assert (np.diff(held) > 0).all()
    assert not np.array_equal(held, hold_out(labels, 0.1, seed=4)[1])


def test_hold_out_groups_keeps_them_whole() -> None:
    groups = np.random.RandomState(0).randint(0, 20, 200)
    kept, held = hold_out_groups(groups, 0.25, seed=0)
    assert not set(groups[kept]) & set(groups[held])
    assert len(set(groups[held])) == 5
    assert len(kept) + len(held) == 200
