"""Sets with masks by several annotators: LIDC's published pickle, its patients, and made-up lesions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import leanbayes as lb
from leanbayes.data import blobs, load, read_lidc
from leanbayes.data.dataset import Part, groups_of
from leanbayes.errors import DataError


def slices(count: int = 30, side: int = 16) -> dict[str, Any]:
    """As the published pickle has them; three slices a scan."""
    random = np.random.RandomState(0)
    return {
        f"slice {i}": {
            "image": random.uniform(size=(side, side)),
            "masks": [(random.uniform(size=(side, side)) < 0.2).astype(np.float64) for _ in range(4)],
            "series_uid": f"1.3.6.{9 - i // 3}",
        }
        for i in range(count)
    }


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_published_pickle_is_read_without_being_run(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "LIDC").mkdir()
    path, given = tmp_path / "LIDC" / "data_lidc.pickle", slices()
    path.write_bytes(pickle.dumps(given, protocol))
    images, masks, patients = read_lidc(path)
    assert images.dtype == np.uint8
    assert masks.shape == (30, 4, 16, 16)
    np.testing.assert_array_equal(images[4, 0], np.rint(255 * given["slice 4"]["image"]))
    np.testing.assert_array_equal(masks[4], np.stack(given["slice 4"]["masks"]) == 1)
    assert patients.tolist() == [9 - i // 3 for i in range(30)]
    found = load("lidc", root=tmp_path)
    assert found.input_shape == (1, 16, 16)
    assert len({int(g) for part in found.parts.values() for g in part.groups.unique()}) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": print}, "asks for builtins.print, which is not allowed"),
        ({"image": np.full((16, 16), 2.0)}, "slice 3: expected an image .* of pixels from 0 to 1"),
        ({"masks": [np.zeros((16, 16))] * 3}, "slice 3: expected four masks"),
        ({"masks": [np.full((16, 16), 0.5)] * 4}, "slice 3: expected masks of zeros and ones"),
        ({"masks": [np.zeros((16, 15))] * 4}, "slice 3: expected four masks of shape"),
        ({"image": np.zeros((8, 8)), "masks": [np.zeros((8, 8))] * 4}, "expected slices of one size"),
    ],
)
def test_a_wrong_pickle(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    given = slices(6)
    given["slice 3"] |= change
    path = tmp_path / "data_lidc.pickle"
    path.write_bytes(pickle.dumps(given))
    with pytest.raises(DataError, match=message):
        read_lidc(path)
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(DataError, match="at least one slice"):
        read_lidc(path)
    path.write_bytes(pickle.dumps({"a": {"image": 0}}))
    with pytest.raises(DataError, match="a: expected 'image', 'masks' and 'series_uid', received image"):
        read_lidc(path)


def test_annotators_of_blobs_mark_as_often_as_is_said() -> None:
    made = blobs(400, annotators=100)
    share = made.masks.mean(1)
    # 100 annotators a pixel: the mean squared error is that of a binomial share
    expected = (made.probability * (1 - made.probability) / 100).mean()
    assert abs(((share - made.probability) ** 2).mean() / expected - 1) < 0.15
    assert 0.05 < (~made.masks.any((2, 3))).mean() < 0.6  # some leave an image empty
    assert (blobs(seed=1).images != blobs().images).any()


def test_no_patient_of_blobs_is_in_two_parts() -> None:
    found = load("blobs")
    assert [len(part) for part in found.parts.values()] == [360, 120, 120]
    known = [set(part.groups.tolist()) for part in found.parts.values()]
    assert sum(map(len, known)) == len(set().union(*known)) == 150


def test_groups_of_subsets_and_loaders() -> None:
    part = Part(torch.arange(6), groups=torch.tensor([1, 1, 2, 2, 3, 3]))
    assert groups_of(Subset(part, [0, 5])).tolist() == [1, 3]
    assert groups_of(DataLoader(Subset(part, [4, 1]), 2)).tolist() == [3, 1]
    assert groups_of(DataLoader(part, shuffle=True)) is None
    assert groups_of(DataLoader(Part(torch.arange(3)))) is None
    assert groups_of((torch.zeros(3),)) is None
    assert part.take(torch.tensor([5, 0])).groups.tolist() == [3, 1]


def test_fit_takes_a_set_with_annotators_as_it_is() -> None:
    found = load("blobs")
    torch.manual_seed(0)
    model = lb.models.unet(widths=(4, 8))
    options = {"epochs": 2, "batch_size": 16, "lr": 1e-2, "progress": False}
    history = lb.fit(model, found.train, val=found.val, task="segmentation", **options)
    assert history.last["val_nll"] < 0.7 * 32 * 32 * np.log(2)  # that of a coin for every pixel
    assert history.last["val_accuracy"] > 0.8
