"""Contrast, elastic, pixelate and JPEG corruptions of images (N, H, W, C) in [0, 1]; draws: one generator per image."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .filters import Array, gaussian, sample
from .noise import Draws

if TYPE_CHECKING:
    from PIL.Image import Image


def contrast(x: Array, draws: Draws, share: float) -> Array:
    """Lower contrast: deviations from the mean of each channel are multiplied by ``share``."""
    means = x.mean((1, 2), keepdims=True)
    return (x - means) * share + means


def elastic_transform(x: Array, draws: Draws, strength: float, smoothness: float, affine: float) -> Array:
    """An elastic transform: a random affine map, then a smooth random displacement of every pixel.

    All three are in units of the shorter side. affine: how far three points around the centre may move.
    smoothness: the sigma of the Gaussian that smooths uniform noise; strength: what the result is multiplied by.
    """
    count, height, width, _ = x.shape
    side = min(height, width)
    corners = np.empty((count, 3, 2))
    noise = np.empty((2, count, height, width))
    for number, rng in enumerate(draws):
        corners[number] = rng.uniform(-affine * side, affine * side, size=(3, 2))
        noise[0, number] = rng.uniform(-1, 1, size=(height, width))
        noise[1, number] = rng.uniform(-1, 1, size=(height, width))
    rows, columns = np.mgrid[:height, :width]
    matrix = _affine(corners, height, width)[..., None, None]
    back = [matrix[:, i, 0] * columns + matrix[:, i, 1] * rows + matrix[:, i, 2] for i in (0, 1)]
    x = sample(x, back[1], back[0], repeat_edge=False)
    right, down = (strength * side * gaussian(n, smoothness * side, mode="reflect", truncate=3) for n in noise)
    return sample(x, rows + down, columns + right, repeat_edge=True)


def pixelate(x: Array, draws: Draws, share: float) -> Array:
    """Fewer pixels: scaled down to ``share`` of the sides and up again, by areas."""
    height, width = x.shape[1:3]

    def through(image: Image) -> Image:
        from PIL.Image import Resampling

        small = image.resize((max(int(width * share), 1), max(int(height * share), 1)), Resampling.BOX)
        return small.resize((width, height), Resampling.BOX)

    return _with_pillow(x, through)


def jpeg_compression(x: Array, draws: Draws, quality: int) -> Array:
    """Compression to JPEG of low quality."""

    def through(image: Image) -> Image:
        from PIL import Image as pillow

        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return pillow.open(file)

    return _with_pillow(x, through)


def _affine(moves: Array, height: int, width: int) -> Array:
    """(N, 2, 3): where a pixel (column, row, 1) comes from, when three points have made these moves (N, 3, 2)."""
    centre, reach = np.array([width // 2, height // 2]), min(height, width) // 3
    before = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    after = np.concatenate([before + moves, np.ones((len(moves), 3, 1))], axis=2)
    inverse = np.linalg.inv(after)
    return (inverse[:, :, :, None] * before[None, None]).sum(2).transpose(0, 2, 1)


def _with_pillow(x: Array, function: Callable[[Image], Image]) -> Array:
    """Apply a function of Pillow to the images one by one, as 8-bit images."""
    from PIL import Image as pillow

    pixels = np.round(255 * x).astype(np.uint8)
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    done = np.stack([np.asarray(function(pillow.fromarray(image))) for image in pixels])
    return done.reshape(x.shape) / 255
