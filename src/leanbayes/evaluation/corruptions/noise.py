"""Gaussian, shot and impulse noise on images (N, H, W, C) in [0, 1]; draws: one generator per image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .filters import Array

Draws = Sequence[np.random.Generator]


def gaussian_noise(x: Array, draws: Draws, scale: float) -> Array:
    """x + N(0, scale^2), every channel by itself: low light."""
    return x + np.stack([rng.normal(size=x.shape[1:], scale=scale) for rng in draws])


def shot_noise(x: Array, draws: Draws, photons: float) -> Array:
    """Poisson(photons * x) / photons: light comes in quanta, few of them."""
    return np.stack([rng.poisson(photons * image) for rng, image in zip(draws, x, strict=True)]) / photons


def impulse_noise(x: Array, draws: Draws, amount: float) -> Array:
    """A share of the values is 0 or 1 with equal odds, every channel by itself: bit errors, salt and pepper."""
    hit = np.stack([rng.random((2, *x.shape[1:])) for rng in draws])
    return np.where(hit[:, 0] <= amount, (hit[:, 1] <= 0.5).astype(x.dtype), x)
