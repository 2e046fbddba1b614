"""Filters that several corruptions share: blurs, zooms, interpolation, and rounding to eight bits.

Images are arrays (N, H, W, C). Every operation treats images one by one or element by element (no matrix product over
the batch), so that the result for an image does not depend on the rest of the batch in any bit.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Added before rounding down, so that a whole number up to rounding error does not become the one below.
HAIR = 1e-4


def eight_bit(x: Array) -> Array:
    """Values in [0, 1] as whole numbers 0..255, rounded down as in the published data sets.

    >>> eight_bit(np.array([-0.1, 0.0, 0.4999, 1.0, 1.2])).tolist()
    [0.0, 0.0, 127.0, 255.0, 255.0]
    """
    return np.floor(255 * np.clip(x, 0, 1) + HAIR)


def gaussian(x: Array, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """A Gaussian blur of rows and columns; (N, H, W) or (N, H, W, C)."""
    from scipy.ndimage import gaussian_filter

    sigmas = (0.0, sigma, sigma) + (0.0,) * (x.ndim - 3)
    blurred: Array = gaussian_filter(x, sigmas, mode=mode, truncate=truncate)
    return blurred


def correlate(x: Array, kernel: Array) -> Array:
    """sum_ij kernel_ij x_(r+i, c+j), the border mirrored without repeating its pixels; kernel (K, K), K odd."""
    height, width = x.shape[1:3]
    reach = len(kernel) // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    total = np.zeros_like(x)
    for row, column in zip(*(kernel > 1e-9).nonzero(), strict=True):  # skip the tails of a Gaussian
        total += kernel[row, column] * padded[:, row : row + height, column : column + width]
    return total


def motion(x: Array, radius: float, sigma: float, angles: Array) -> Array:
    """Each image smeared along a line: half a Gaussian of 2 ceil(radius) + 1 taps in direction of its angle (degrees).

    As ImageMagick does it: whole-pixel steps, edge pixels repeated. x: (N, H, W, C); angles: (N,).
    """
    height, width = x.shape[1:3]
    taps = 2 * math.ceil(radius) + 1
    steps = np.arange(taps)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    padded = np.pad(x, ((0, 0), (taps, taps), (taps, taps), (0, 0)), mode="edge")
    out = np.zeros_like(x)
    for image, source, angle in zip(out, padded, np.radians(angles), strict=True):
        rows = taps + np.ceil(steps * np.sin(angle) - 0.5).astype(int)
        columns = taps + np.ceil(steps * np.cos(angle) - 0.5).astype(int)
        for weight, row, column in zip(weights, rows, columns, strict=True):
            image += weight * source[row : row + height, column : column + width]
    return out


def zoomed(x: Array, factors: tuple[float, ...]) -> Array:
    """The sum over factors of the image enlarged about its centre by linear interpolation and cut to its size.

    >>> image = np.arange(16.0).reshape(1, 4, 4, 1)
    >>> bool((zoomed(image, (1.0, 1.0)) == 2 * image).all())
    True
    """
    count, height, width, channels = x.shape
    operator = _zoom_operator(height, width, factors)
    columns = x.transpose(1, 2, 0, 3).reshape(height * width, count * channels)
    result: Array = (operator @ columns).reshape(height, width, count, channels).transpose(2, 0, 1, 3)
    return result


@functools.lru_cache(maxsize=8)
def _zoom_operator(height: int, width: int, factors: tuple[float, ...]) -> Any:
    """All zooms at once as one sparse matrix (H W, H W): they are linear, and most of their taps coincide."""
    from scipy import sparse

    total = sparse.csr_array((height * width, height * width))
    for factor in factors:
        total = total + sparse.kron(_zoom_line(height, factor), _zoom_line(width, factor), format="csr")
    return total


def _zoom_line(size: int, factor: float) -> Any:
    """Interpolation along one side: the middle ceil(size / factor) pixels, spread out, the surplus trimmed."""
    from scipy import sparse

    size_before = math.ceil(size / factor)
    enlarged = round(size_before * factor)
    positions = (np.arange(size) + (enlarged - size) // 2) * (size_before - 1) / max(enlarged - 1, 1)
    left = np.minimum(np.floor(positions).astype(int), max(size_before - 2, 0))
    share = positions - left
    first, rows = (size - size_before) // 2, np.arange(size)
    right = np.minimum(left + 1, size_before - 1)
    entries = (np.r_[1 - share, share], (np.r_[rows, rows], first + np.r_[left, right]))
    return sparse.csr_array(entries, shape=(size, size))


def sample(x: Array, rows: Array, columns: Array, *, repeat_edge: bool) -> Array:
    """Bilinear interpolation of x (N, H, W, C) at real positions rows, columns (N, H, W), mirrored at the border.

    repeat_edge: the mirror stands at the outer edge of the border pixels (d c b a | a b c d), not at their centres.
    """
    count, height, width, channels = x.shape
    flat = x.reshape(-1, channels)
    start = (np.arange(count) * height * width).reshape(-1, 1, 1)
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, across = (rows - top)[..., None], (columns - left)[..., None]
    top, bottom = (start + width * _mirror(r, height, repeat_edge) for r in (top, top + 1))
    left, right = (_mirror(c, width, repeat_edge) for c in (left, left + 1))
    upper = (1 - across) * flat[top + left] + across * flat[top + right]
    lower = (1 - across) * flat[bottom + left] + across * flat[bottom + right]
    result: Array = (1 - down) * upper + down * lower
    return result


def _mirror(index: Array, size: int, repeat_edge: bool) -> Array:
    if repeat_edge:
        index = index % (2 * size)
        return np.where(index < size, index, 2 * size - 1 - index)
    if size == 1:
        return np.zeros_like(index)
    index = index % (2 * size - 2)
    return np.where(index < size, index, 2 * size - 2 - index)
