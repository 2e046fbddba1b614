"""The fifteen corruptions: what holds for all, and each against something independent."""

import json
from importlib import import_module
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest
import scipy.ndimage
import torch

from leanbayes.errors import EvaluationError
from leanbayes.evaluation.corruptions import (
    NAMES,
    SEVERITIES,
    blur,
    constants,
    corrupt,
    digital,
    filters,
    names,
    noise,
    weather,
)

ROOT = Path(__file__).parents[2]
FIXED = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 40, 30), (1, 64, 64), (3, 96, 96)]


def scenes(count, channels, height, width, seed=0):
    """Pictures with the spectrum of photographs (power falls as f^-2), in [0.05, 0.95]."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    field = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(count, channels, height, width))) / frequency, (height, width))
    field = field + 2 * field.mean(1, keepdims=True)  # channels go together
    low, high = field.min((1, 2, 3), keepdims=True), field.max((1, 2, 3), keepdims=True)
    return torch.from_numpy(0.05 + 0.9 * (field - low) / (high - low)).float()


def dice(count=1, seed=0):
    return [np.random.default_rng((seed, i)) for i in range(count)]


# What holds for all


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


# Bad input


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


# Each against something independent


def test_gaussian_noise_has_its_scale():
    result = noise.gaussian_noise(np.full((50, 32, 32, 3), 0.5), dice(50), 0.08) - 0.5
    count = result.size
    assert abs(result.mean()) < 5 * 0.08 / count**0.5
    assert result.std() == pytest.approx(0.08, rel=5 / (2 * count) ** 0.5)


def test_shot_noise_has_the_mean_and_variance_of_photons():
    result = noise.shot_noise(np.full((50, 32, 32, 3), 0.4), dice(50), 60)
    count, variance = result.size, 0.4 / 60
    assert result.mean() == pytest.approx(0.4, abs=5 * (variance / count) ** 0.5)
    assert result.var() == pytest.approx(variance, rel=5 * (2.1 / count) ** 0.5)


def test_impulse_noise_hits_its_share_with_equal_odds():
    result = noise.impulse_noise(np.full((50, 32, 32, 3), 0.5), dice(50), 0.07)
    count = result.size
    for value in (0, 1):
        assert (result == value).mean() == pytest.approx(0.035, abs=5 * (0.035 * 0.965 / count) ** 0.5)


@pytest.mark.parametrize(("radius", "alias"), [(0.3, 0.4), (1.5, 0.1), (6, 0.5), (10, 0.5)])
def test_defocus_is_a_convolution_with_a_disk(radius, alias):
    kernel = blur.disk(radius, alias)
    assert kernel.sum() == pytest.approx(1, rel=0.02)  # the border of the largest disk gives back too much
    assert np.allclose(kernel, kernel.T)
    area = (kernel > kernel.max() / 2).sum()
    assert abs(area - np.pi * radius**2) < 2 + 2 * np.pi * radius  # Gauss' circle problem
    images = scenes(2, 3, 32, 32).double().numpy().transpose(0, 2, 3, 1)
    expected = scipy.ndimage.correlate(images, kernel[None, :, :, None], mode="mirror")
    np.testing.assert_allclose(blur.defocus_blur(images, [], radius, alias), expected, atol=1e-6)


@pytest.mark.parametrize(("reach", "rounds"), [(1, 2), (2, 1), (3, 2), (4, 2)])
def test_glass_blur_visits_pixels_one_by_one(reach, rounds):
    """The leaps of the vectorised version against the plain loop that they stand for."""
    height, width = 20, 24
    images = np.floor(255 * scenes(3, 3, height, width).double().numpy().transpose(0, 2, 3, 1)) / 255
    result = blur.glass_blur(images, dice(3), 1e-3, reach, rounds)  # too little blur to matter
    for image, found, rng in zip(images, result, dice(3), strict=True):
        expected = image.copy()
        shifts = iter(rng.integers(-reach, reach, size=(rounds * (height - 2 * reach) * (width - 2 * reach), 2)))
        for _ in range(rounds):
            for row in range(height - reach, reach, -1):
                for column in range(width - reach, reach, -1):
                    across, down = next(shifts)
                    expected[row, column] = expected[row + down, column + across].copy()
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("angle", [-45.0, -90.0, 0.0, 17.0, 44.0, -120.0])
def test_motion_is_a_sum_along_a_line(angle):
    image = scenes(1, 3, 12, 10).double().numpy().transpose(0, 2, 3, 1)
    radius, sigma = 4, 2.5
    weights = [np.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    expected = np.zeros_like(image)
    for row in range(12):
        for column in range(10):
            for i, weight in enumerate(weights):
                down = int(np.ceil(i * np.sin(np.radians(angle)) - 0.5))
                across = int(np.ceil(i * np.cos(np.radians(angle)) - 0.5))
                at = min(max(row + down, 0), 11), min(max(column + across, 0), 9)
                expected[0, row, column] += weight / sum(weights) * image[0, at[0], at[1]]
    np.testing.assert_allclose(filters.motion(image, radius, sigma, np.array([angle])), expected, atol=1e-12)


@pytest.mark.parametrize("size", [28, 32, 33, 64])
def test_zoom_agrees_with_scipy(size):
    images = scenes(2, 3, size, size).double().numpy().transpose(0, 2, 3, 1)
    factors = (1.0, 1.01, 1.25, 1.75, 4.5)
    expected = np.zeros_like(images)
    for factor in factors:
        kept = int(np.ceil(size / factor))
        first = (size - kept) // 2
        crop = images[:, first : first + kept, first : first + kept]
        large = np.stack([scipy.ndimage.zoom(image, (factor, factor, 1), order=1) for image in crop])
        trim = (large.shape[1] - size) // 2
        expected += large[:, trim : trim + size, trim : trim + size]
    np.testing.assert_allclose(filters.zoomed(images, factors), expected, atol=1e-9)


@pytest.mark.parametrize(("repeat_edge", "mode"), [(True, "reflect"), (False, "mirror")])
def test_sampling_between_pixels_agrees_with_scipy(repeat_edge, mode):
    images = scenes(3, 1, 11, 14).double().numpy().transpose(0, 2, 3, 1)
    rng = np.random.default_rng(0)
    rows, columns = rng.uniform(-30, 40, (3, 11, 14)), rng.uniform(-30, 40, (3, 11, 14))
    expected = [
        scipy.ndimage.map_coordinates(image[..., 0], (r, c), order=1, mode=mode)
        for image, r, c in zip(images, rows, columns, strict=True)
    ]
    found = filters.sample(images, rows, columns, repeat_edge=repeat_edge)[..., 0]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_plasma_agrees_with_diamonds_and_squares_point_by_point():
    side, decay = 16, 1.75
    uniform = iter(dice()[0].random(side * side - 1))
    heights, step, wobble = np.zeros((side, side)), side, 100.0

    def set_point(row, column, *neighbours):
        mean = sum(heights[r % side, c % side] for r, c in neighbours) / 4
        heights[row, column] = mean + wobble**2 * (2 * next(uniform) - 1)

    while step >= 2:
        half = step // 2
        for r in range(half, side, step):
            for c in range(half, side, step):
                set_point(r, c, *((r + a, c + b) for a in (-half, half) for b in (-half, half)))
        for r in range(0, side, step):
            for c in range(half, side, step):
                set_point(r, c, (r - half, c), (r + half, c), (r, c - half), (r, c + half))
        for r in range(half, side, step):
            for c in range(0, side, step):
                set_point(r, c, (r - half, c), (r + half, c), (r, c - half), (r, c + half))
        step, wobble = half, wobble / decay
    heights = (heights - heights.min()) / (heights.max() - heights.min())
    np.testing.assert_allclose(weather.plasma(dice(), 13, decay)[0], heights, atol=1e-9)


def test_brightness_raises_the_value_of_hsv():
    images = scenes(4, 3, 32, 32).double().numpy().transpose(0, 2, 3, 1)
    images[0, :4] = 0
    images[0, 4:8] = 1
    hsv = matplotlib.colors.rgb_to_hsv(images)
    hsv[..., 2] = np.clip(hsv[..., 2] + 0.2, 0, 1)
    np.testing.assert_allclose(weather.brightness(images, [], 0.2), matplotlib.colors.hsv_to_rgb(hsv), atol=1e-9)


def test_contrast_shrinks_the_deviation_and_keeps_the_mean():
    images = scenes(4, 3, 32, 32).double().numpy().transpose(0, 2, 3, 1)
    result = digital.contrast(images, [], 0.3)
    np.testing.assert_allclose(result.mean((1, 2)), images.mean((1, 2)))
    np.testing.assert_allclose(result.std((1, 2)), 0.3 * images.std((1, 2)))


def test_pixelate_takes_means_of_blocks():
    images = scenes(2, 3, 64, 64)  # at this size severity 5 halves the sides
    blocks = torch.nn.functional.avg_pool2d((255 * images).round(), 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert float((255 * corrupt(images, "pixelate", 5) - blocks).abs().max()) <= 1  # rows, then columns are rounded


def test_jpeg_files_of_lower_quality_are_further_away():
    images = scenes(8, 1, 28, 28)
    distances = [float((corrupt(images, "jpeg_compression", s) - images).pow(2).mean()) for s in SEVERITIES]
    assert distances == sorted(distances)
    assert distances[-1] < 0.01


def test_ice_has_the_histogram_and_the_grain_it_was_given():
    crops = np.stack([255 * weather.ice(rng, 32, 32) for rng in dice(600)])
    expected = np.mean([np.interp(np.linspace(-2.3, 2.3, 99), weather._NORMAL, k.levels).mean() for k in weather._ICES])
    spread = crops.mean((1, 2, 3)).std()
    assert crops.mean() == pytest.approx(expected, abs=5 * spread / 600**0.5)
    assert (crops.mean((0, 1, 2)).argsort() == [0, 1, 2]).all()  # ice is blue
    neighbours = [np.corrcoef(g[:, 1:].ravel(), g[:, :-1].ravel())[0, 1] for g in crops.mean(3)]
    assert 0.3 < np.median(neighbours) < 0.9  # grainy, not white noise


def test_the_committed_comparison_with_the_reference_says_what_the_docs_say():
    raw = json.loads((ROOT / "benchmarks" / "results" / "corruptions.json").read_text())["raw"]
    assert {entry.partition(",")[0] for entry in raw} == set(NAMES)
    for entry, rows in raw.items():
        for row in rows:
            if entry.startswith("frost"):  # few images are of 224 pixels: too few for statistics
                assert row["change"] == pytest.approx(row["reference_change"], rel=0.3 if "224" in entry else 0.05), (
                    entry
                )
            else:
                assert row["difference"] < 0.1, entry
                assert row["within_one"] > 0.999, entry
