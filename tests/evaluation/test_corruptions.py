"""The fifteen corruptions: what holds for all, and each against something independent."""

from importlib import import_module

import numpy as np
import pytest
import torch

from leanbayes.errors import EvaluationError
from leanbayes.evaluation.corruptions import (
    NAMES,
    SEVERITIES,
    constants,
    corrupt,
    digital,
    names,
)

from .scenes import dice, scenes

FIXED = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")


SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 40, 30), (1, 64, 64), (3, 96, 96)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_a_picture_of_the_same_kind(name, shape):
    images = scenes(3, *shape)
    before = images.clone()
    for severity in (1, 5):
        result = corrupt(images, name, severity)
        assert result.shape == images.shape
        assert result.dtype == images.dtype
        assert 0 <= float(result.min()) <= float(result.max()) <= 1
        torch.testing.assert_close(255 * result, (255 * result).round(), rtol=0, atol=1e-4)  # 8 bits
        assert not torch.equal(result, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_neither_batch_nor_chunk_matters_and_a_seed_repeats(name, channels, monkeypatch):
    images = scenes(7, channels, 32, 32)
    whole = corrupt(images, name, 4, seed=5, start=100)
    assert torch.equal(whole, corrupt(images, name, 4, seed=5, start=100))
    parts = [corrupt(images[a:b], name, 4, seed=5, start=100 + a) for a, b in ((0, 1), (1, 3), (3, 7))]
    assert torch.equal(whole, torch.cat(parts))
    monkeypatch.setattr(import_module("leanbayes.evaluation.corruptions"), "_VALUES", 1)
    assert torch.equal(whole, corrupt(images, name, 4, seed=5, start=100))
    assert torch.equal(whole, corrupt(images, name, 4, seed=6, start=100)) == (name in FIXED)
    assert torch.equal(whole, corrupt(images, name, 4, seed=5, start=101)) == (name in FIXED)


def change(images, name, severity):
    return float((corrupt(images, name, severity) - images).abs().mean())


@pytest.mark.parametrize("size", [28, 32, 96])
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("frost", "glass_blur", "elastic_transform")])
def test_severity_is_monotone_in_mean_distortion(name, size):
    images = scenes(24, 3, size, size)
    changes = [change(images, name, severity) for severity in SEVERITIES]
    assert changes == sorted(changes)
    assert len(set(changes)) == 5


def test_frost_hides_more_with_severity():
    """The published constants darken the picture too, so the distance does not rise; the share of the ice does."""
    images = scenes(60, 3, 32, 32)
    hidden = []
    for severity in SEVERITIES:
        result = corrupt(images, "frost", severity)
        pairs = zip(images.flatten(1).numpy(), result.flatten(1).numpy(), strict=True)
        hidden.append(np.mean([1 - np.corrcoef(a, b)[0, 1] ** 2 for a, b in pairs]))
    assert hidden == sorted(hidden)


def test_glass_of_two_rounds_distorts_more_than_glass_of_one():
    """Within a round the blur grows with severity, which brings pixels nearer to the original rather than farther."""
    changes = [change(scenes(24, 3, 32, 32), "glass_blur", severity) for severity in SEVERITIES]
    assert max(changes[:3]) < min(changes[3:])


def test_elastic_transform_bends_more_with_severity():
    """The affine part shrinks with severity, so pixels move less; what is left after the best affine map grows."""
    rows, columns = np.mgrid[:32, :32] / 31
    ramps = np.broadcast_to(np.stack([rows, columns], -1), (40, 32, 32, 2))
    inner = (slice(10, 22), slice(10, 22))
    basis = np.c_[np.ones(144), rows[inner].ravel(), columns[inner].ravel()]
    bends = []
    for severity in SEVERITIES:
        moved = digital.elastic_transform(ramps, dice(40), *constants("elastic_transform", severity, (3, 32, 32)))
        residuals = [np.linalg.lstsq(basis, field[inner].reshape(144, 2), rcond=None)[1].sum() for field in moved]
        bends.append(np.median(residuals))
    assert bends == sorted(bends)
    assert bends[0] < 1e-20  # severity 1 is affine alone


def test_half_precision_keeps_its_dtype():
    images = scenes(2, 3, 32, 32)
    assert corrupt(images.half(), "fog", 2).dtype is torch.float16
    assert corrupt(images.double(), "fog", 2).dtype is torch.float64


def test_no_images_give_no_images():
    assert corrupt(torch.zeros(0, 3, 32, 32), "snow", 1).shape == (0, 3, 32, 32)


def test_black_and_white_pictures_are_safe():
    for value in (0.0, 1.0):
        for name in NAMES:
            assert torch.isfinite(corrupt(torch.full((2, 3, 32, 32), value), name, 5)).all(), name


def test_a_grey_picture_is_corrupted_alike_in_one_channel_and_in_three():
    grey = scenes(4, 1, 32, 32)
    for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow", "fog", "brightness", "contrast"):
        one, three = corrupt(grey, name, 3), corrupt(grey.expand(-1, 3, -1, -1), name, 3)
        assert float((one - three).abs().max()) <= 1.01 / 255, name


def test_the_shape_decides_which_suit():
    assert names((3, 32, 32)) == names((1, 32, 32)) == names((3, 28, 28)) == names((3, 224, 224)) == NAMES
    assert set(NAMES) - set(names((1, 28, 28))) == {"snow", "frost"}


def test_constants_follow_the_size():
    assert constants("jpeg_compression", 5, (3, 63, 90)) == (40,)
    assert constants("jpeg_compression", 5, (3, 64, 90)) == constants("jpeg_compression", 5, (3, 127, 127)) == (25,)
    assert constants("jpeg_compression", 5, (3, 128, 128)) == (7,)
    assert constants("elastic_transform", 3, (3, 224, 224))[0] * 224 == pytest.approx(244 * 0.05)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(3, 32, 32), r"\(N, C, H, W\).*\(3, 32, 32\)"),
        (torch.rand(2, 2, 32, 32), r"1 or 3 channels.*\(2, 32, 32\)"),
        (torch.rand(2, 3, 7, 32), r"at least 8 x 8"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), r"images\.float\(\) / 255"),
        (np.zeros((2, 3, 32, 32)), r"tensor.*ndarray"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(images, message):
    with pytest.raises(EvaluationError, match=message):
        corrupt(images, "fog", 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1])
def test_bad_pixels_are_named_by_the_index_of_their_datum(value):
    images = torch.rand(5, 3, 32, 32)
    images[3, 1, 4, 4] = value
    with pytest.raises(EvaluationError, match=rf"images\[203\].*\[0, 1\].*received {value}.*Pixels"):
        corrupt(images, "fog", 1, start=200)


def test_a_hair_outside_is_forgiven():
    images = scenes(2, 3, 32, 32)
    images[0, 0, 0, 0], images[1, 0, 0, 0] = -1e-4, 1 + 1e-4
    assert torch.equal(corrupt(images, "contrast", 1), corrupt(images.clamp(0, 1), "contrast", 1))


@pytest.mark.parametrize("severity", [0, 6, True, 1.0, "1", None])
def test_severity_is_checked(severity):
    with pytest.raises(EvaluationError, match="from 1 to 5"):
        corrupt(torch.rand(1, 3, 32, 32), "fog", severity)


@pytest.mark.parametrize(
    ("name", "meant"), [("frog", "fog"), ("JPEG", "jpeg_compression"), ("Motion Blur", "motion_blur")]
)
def test_an_unknown_name_gets_a_guess(name, meant):
    with pytest.raises(EvaluationError, match=f"did you mean '{meant}'"):
        corrupt(torch.rand(1, 3, 32, 32), name, 1)


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 0.5}, {"start": -1}, {"start": True}])
def test_seed_and_start_are_checked(options):
    with pytest.raises(EvaluationError, match="whole number"):
        corrupt(torch.rand(1, 3, 32, 32), "fog", 1, **options)
