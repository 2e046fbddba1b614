"""Defocus, glass, motion and zoom blur of images (N, H, W, C) in [0, 1]; draws: one generator per image."""

from __future__ import annotations

import functools
import math

import numpy as np

from .filters import Array, correlate, eight_bit, gaussian, motion, zoomed
from .noise import Draws


def defocus_blur(x: Array, draws: Draws, radius: float, alias_blur: float) -> Array:
    """Out of focus: convolution with a disk of some radius, whose staircase is softened by a small Gaussian."""
    return correlate(x, disk(radius, alias_blur))


def glass_blur(x: Array, draws: Draws, sigma: float, reach: int, rounds: int) -> Array:
    """Frosted glass: blur, replace pixels by near ones, blur.

    Pixels are visited from the last to the first and become their neighbour (r + u, c + v) as it then is, with u and v
    uniform in -reach..reach - 1; a margin is left unchanged. The published code intends to swap the two but copies
    the neighbour; this function copies too, to match the published data.
    """
    count, height, width, channels = x.shape
    pixels = eight_bit(gaussian(x, sigma)).reshape(count, height * width, channels)
    for sources in _neighbours(draws, height, width, reach, rounds):
        pixels = np.take_along_axis(pixels, sources[..., None], axis=1)
    return gaussian(pixels.reshape(x.shape) / 255, sigma)


def motion_blur(x: Array, draws: Draws, radius: float, sigma: float) -> Array:
    """A moving camera: a one-sided smear in a direction of -45 to 45 degrees."""
    angles = np.array([rng.uniform(-45, 45) for rng in draws])
    return motion(x, radius, sigma, angles)


def zoom_blur(x: Array, draws: Draws, stop: float, step: float) -> Array:
    """Moving towards the scene: the mean of the image and of its enlargements by 1, 1 + step, ... up to stop."""
    factors = tuple(np.arange(1, stop, step).tolist())
    return (x + zoomed(x, factors)) / (len(factors) + 1)


@functools.lru_cache(maxsize=32)
def disk(radius: float, alias_blur: float) -> Array:
    """A disk that sums to 1, blurred over 3 x 3 pixels (5 x 5 for a radius above 8); at least 17 x 17.

    >>> disk(0.3, 0.4)[7:10, 8].round(3).tolist()  # a single pixel, softened
    [0.037, 0.845, 0.037]
    """
    reach, soft = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    line = np.arange(-reach, reach + 1)
    full = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    taps = np.exp(-(np.arange(-soft, soft + 1) ** 2) / (2 * alias_blur**2))
    taps /= taps.sum()
    return correlate((full / full.sum())[None, :, :, None], np.outer(taps, taps))[0, :, :, 0]


def _neighbours(draws: Draws, height: int, width: int, reach: int, rounds: int) -> list[Array]:
    """For every round (N, H W): the number of the pixel whose value each pixel ends up with."""
    order = np.arange(height * width).reshape(height, width)
    visited = order[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1][::-1, ::-1].ravel()  # in this order
    shifts = np.stack([rng.integers(-reach, reach, size=(rounds, len(visited), 2)) for rng in draws])
    inside = np.zeros(height * width, dtype=bool)
    inside[visited] = True
    result = []
    for turn in range(rounds):
        source = np.tile(order.ravel(), (len(draws), 1))
        source[:, visited] += shifts[:, turn, :, 1] * width + shifts[:, turn, :, 0]
        # A source with a higher number was visited before and holds the value of its own source by then:
        # follow the chain, in steps that double, to a pixel that was not yet changed.
        touched = (source > order.ravel()) & inside[source]
        while touched.any():
            further, again = np.take_along_axis(source, source, axis=1), np.take_along_axis(touched, source, axis=1)
            source, touched = np.where(touched, further, source), touched & again
        result.append(source)
    return result
