"""Out-of-domain images in the digits' format: letters, noise, photographs and shuffled digits.

All are grey 8x8 images with the 17 levels of the digits, normalised with the digits' mean and standard deviation.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..optional import require
from . import digits
from .arrays import Arrays
from .files import Request

COUNT = 360
# Letters of straight strokes that resemble no digit (no I, L, T, Y, Z), as polylines in the unit square.
_LETTERS: dict[str, list[list[tuple[float, float]]]] = {
    "A": [[(0, 1), (0.5, 0), (1, 1)], [(0.2, 0.6), (0.8, 0.6)]],
    "E": [[(1, 0), (0, 0), (0, 1), (1, 1)], [(0, 0.5), (0.8, 0.5)]],
    "F": [[(1, 0), (0, 0), (0, 1)], [(0, 0.5), (0.8, 0.5)]],
    "H": [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(0, 0.5), (1, 0.5)]],
    "K": [[(0, 0), (0, 1)], [(1, 0), (0, 0.5), (1, 1)]],
    "M": [[(0, 1), (0, 0), (0.5, 0.6), (1, 0), (1, 1)]],
    "N": [[(0, 1), (0, 0), (1, 1), (1, 0)]],
    "V": [[(0, 0), (0.5, 1), (1, 0)]],
    "W": [[(0, 0), (0.2, 1), (0.5, 0.4), (0.8, 1), (1, 0)]],
    "X": [[(0, 0), (1, 1)], [(1, 0), (0, 1)]],
}


def build(request: Request) -> Arrays:
    """Images (360, 1, 8, 8) and no labels, as a test part; the same whatever the seed."""
    kind = request.name.removeprefix("not-digits/")
    images = {"letters": _letters, "noise": _noise, "photos": _photos, "shuffled": _shuffled}[kind]()
    return Arrays("unlabelled", {"test": (images[:, None],)}, (), digits.FULL_SCALE, normalise_like="digits")


def _noise() -> np.ndarray:
    return np.random.RandomState(0).randint(0, digits.FULL_SCALE + 1, (COUNT, 8, 8)).astype(np.uint8)


def _shuffled() -> np.ndarray:
    """Test digits with permuted pixels."""
    random, images = np.random.RandomState(1), digits.build(Request("digits")).parts["test"][0]
    pixels = images[np.arange(COUNT) % len(images)].reshape(COUNT, 64)
    return np.stack([row[random.permutation(64)] for row in pixels]).reshape(COUNT, 8, 8)


def _photos() -> np.ndarray:
    """Windows of 32x32 pixels of scikit-learn's two photographs, in grey, each averaged to 8x8."""
    require("sklearn", "evaluation", "not-digits/photos")
    from sklearn.datasets import load_sample_images

    windows = []
    for photo in load_sample_images().images:
        grey = photo @ np.array([0.299, 0.587, 0.114]) / 255
        height, width = (side // 32 * 32 for side in grey.shape)
        tiles = grey[:height, :width].reshape(height // 32, 8, 4, width // 32, 8, 4).mean(axis=(2, 5))
        windows.append(tiles.transpose(0, 2, 1, 3).reshape(-1, 8, 8))
    chosen = np.random.RandomState(2).permutation(np.concatenate(windows))[:COUNT]
    return np.rint(chosen * digits.FULL_SCALE).astype(np.uint8)


def _letters() -> np.ndarray:
    """Hand-drawn letters, reduced as the digits were: 32x32 bits, counted in blocks of 4x4."""
    random, strokes = np.random.RandomState(3), list(_LETTERS.values())
    return np.stack([_draw(strokes[i % len(strokes)], random) for i in range(COUNT)])


def _draw(strokes: list[list[tuple[float, float]]], random: np.random.RandomState) -> np.ndarray:
    angle, slant = random.uniform(-0.15, 0.15), random.uniform(-0.2, 0.2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, slant], [0, 1]]) @ np.diag([random.uniform(16, 22), random.uniform(24, 28)])
    thickness = random.uniform(1.4, 2.2)
    bitmap = np.zeros((32, 32), bool)
    centres = np.stack(np.meshgrid(np.arange(32), np.arange(32)), axis=-1) + 0.5
    for stroke in strokes:
        points = (np.array(stroke) - 0.5 + random.normal(0, 0.03, (len(stroke), 2))) @ matrix.T + 16
        for start, end in pairwise(points):
            along = np.clip((centres - start) @ (end - start) / ((end - start) @ (end - start)), 0, 1)
            bitmap |= np.linalg.norm(centres - start - along[..., None] * (end - start), axis=-1) < thickness
    return bitmap.reshape(8, 4, 8, 4).sum(axis=(1, 3)).astype(np.uint8)
