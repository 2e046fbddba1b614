"""Snow, frost, fog and brightness on images (N, H, W, C) in [0, 1]; draws: one generator per image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .filters import Array, eight_bit, motion, zoomed
from .noise import Draws

_LUMINANCE = (0.299, 0.587, 0.114)


def snow(
    x: Array,
    draws: Draws,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Array:
    """Flakes: Gaussian noise enlarged, cut below a threshold and smeared downwards, over a scene that has turned pale.

    The layer is added twice, once turned by 180 degrees.
    """
    count, height, width, _ = x.shape
    layer = np.empty((count, height, width, 1))
    angles = np.empty(count)
    for number, rng in enumerate(draws):
        layer[number, ..., 0] = rng.normal(size=(height, width), loc=mean, scale=spread)
        angles[number] = rng.uniform(-135, -45)
    layer = zoomed(layer, (zoom,))
    layer[layer < threshold] = 0
    layer = eight_bit(motion(eight_bit(layer) / 255, radius, sigma, angles)) / 255  # 8 bits before and after the smear
    pale = np.maximum(x, 1.5 * luminance(x) + 0.5)
    return kept * x + (1 - kept) * pale + layer + layer[:, ::-1, ::-1]


def frost(x: Array, draws: Draws, kept: float, strength: float) -> Array:
    """Ice on the lens: kept * x + strength * ice. The ice is drawn by `ice`, where the reference has photographs."""
    texture = np.stack([ice(rng, x.shape[1], x.shape[2]) for rng in draws])
    return kept * x + strength * (texture if x.shape[-1] == 3 else texture.mean(-1, keepdims=True))


def fog(x: Array, draws: Draws, thickness: float, decay: float) -> Array:
    """A plasma fractal added as light, and the sum scaled back to the brightest value of the image."""
    height, width = x.shape[1:3]
    brightest = x.max((1, 2, 3), keepdims=True)
    haze = plasma(draws, max(height, width), decay)[:, :height, :width, None]
    return (x + thickness * haze) * brightest / (brightest + thickness)


def brightness(x: Array, draws: Draws, amount: float) -> Array:
    """The value of hue, saturation and value raised: colours scale with their largest channel, black becomes grey."""
    value = x.max(-1, keepdims=True)
    raised = np.minimum(value + amount, 1)
    return np.where(value > 0, x * (raised / np.where(value > 0, value, 1)), raised)


def luminance(x: Array) -> Array:
    """Perceived brightness (N, H, W, 1) of colour images; greyscale images are returned as they are."""
    if x.shape[-1] == 1:
        return x
    red, green, blue = _LUMINANCE
    result: Array = red * x[..., :1] + green * x[..., 1:2] + blue * x[..., 2:]
    return result


def plasma(draws: Draws, size: int, decay: float) -> Array:
    """Clouds by the diamond-square algorithm, (N, M, M) in [0, 1], M the power of two from size on.

    A point is the mean of its four neighbours plus w^2 U(-1, 1), where w starts at 100 and is divided by decay whenever
    the grid is halved; the map wraps around.
    """
    side = 1 << (size - 1).bit_length()
    heights = np.zeros((len(draws), side, side))
    uniform = np.stack([rng.random(side * side - 1) for rng in draws])
    step, wobble, used = side, 100.0, 0

    def middle(total: Array) -> Array:
        nonlocal used
        part = uniform[:, used : used + total[0].size].reshape(total.shape)
        used += total[0].size
        return total / 4 + wobble * (2 * wobble * part - wobble)

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        heights[:, half::step, half::step] = middle(pairs + np.roll(pairs, -1, 2))
        centres = heights[:, half::step, half::step]
        sides = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        heights[:, ::step, half::step] = middle(sides)
        sides = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        heights[:, half::step, ::step] = middle(sides)
        step, wobble = half, wobble / decay
    heights -= heights.min((1, 2), keepdims=True)
    result: Array = heights / heights.max((1, 2), keepdims=True)
    return result


class Ice(NamedTuple):
    """Statistics of one kind of ice, in 8-bit units."""

    levels: tuple[float, ...]
    """Grey levels at `_NORMAL`, the standard scores of 1, 10, 25, 50, 75, 90 and 99 %."""
    colour: tuple[float, float, float]
    """The mean of red, green and blue above the grey level."""
    between: float
    """The share of the variance that lies between crops, not within them."""
    slope: float
    """Power falls with frequency as f^-slope."""


_NORMAL = (-2.326, -1.282, -0.674, 0.0, 0.674, 1.282, 2.326)

# Measured on the photographs of the reference; its second and third are the same picture, its sixth is never used.
_ICES = (
    Ice((97, 109, 118, 129, 142, 155, 177), (-53, 18, 35), 0.35, 2.4),
    Ice((142, 177, 195, 210, 222, 231, 245), (-6, -2, 7), 0.17, 2.1),
    Ice((142, 177, 195, 210, 222, 231, 245), (-6, -2, 7), 0.17, 2.1),
    Ice((80, 117, 135, 152, 169, 186, 239), (-14, 1, 13), 0.14, 1.8),
    Ice((46, 71, 91, 120, 151, 182, 238), (-11, 0, 11), 0.17, 1.8),
)
_FINEST = 112
"""Cycles across a crop that a photograph resolves; those that a small image cannot hold are aliased to white noise."""


def ice(rng: np.random.Generator, height: int, width: int) -> Array:
    """A crop of an icy pane, (H, W, 3) in [0, 1]: noise with the spectrum, histogram and tint of a photograph of ice.

    One of five kinds by chance. The grain is drawn out along a random direction, as crystals are.
    """
    kind, angle = _ICES[rng.integers(len(_ICES))], rng.uniform(0, np.pi)
    grain = np.fft.irfft2(
        np.fft.rfft2(rng.normal(size=(height, width))) * _amplitude(height, width, angle, kind.slope), (height, width)
    )
    grain /= grain.std()
    score = np.sqrt(kind.between) * rng.normal() + np.sqrt(1 - kind.between) * grain
    grey = np.interp(score, _NORMAL, kind.levels)
    return np.clip(grey[..., None] + np.array(kind.colour), 0, 255) / 255


def _amplitude(height: int, width: int, angle: float, slope: float) -> Array:
    """The root of the power at every frequency of `rfft2`, zero for the mean, which is drawn apart."""
    rows, columns = height * np.fft.fftfreq(height)[:, None], width * np.fft.rfftfreq(width)
    along = np.cos(angle) * rows + np.sin(angle) * columns
    across = np.cos(angle) * columns - np.sin(angle) * rows
    frequency = np.sqrt(2 * along**2 + across**2 / 2)  # grain twice as long as wide
    frequency[0, 0] = 1
    beyond = np.arange(min(height, width) // 2 + 1, _FINEST + 1)
    folded = 2 * np.pi * (beyond ** (1 - slope)).sum() / (height * width)
    amplitude: Array = np.sqrt(frequency**-slope + folded)
    amplitude[0, 0] = 0
    return amplitude
