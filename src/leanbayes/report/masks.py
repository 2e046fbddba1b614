"""Images, masks and maps of uncertainty as PNG files, and outlines of masks as SVG paths, with numpy alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from .figure import SERIES

_STOPS = ("#00020f", "#2b0a56", "#7a1c6d", "#c33b4f", "#f3761b", "#fbc228", "#fcffc8")  # dark to light at even steps
LARGEST = 128
"""The most pixels of an image's longer side in a page; larger images are thinned out."""


def _rgb(colours: Sequence[str]) -> np.ndarray:
    return np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours], dtype=np.float64)


PALETTE = np.stack(
    [np.interp(np.linspace(0, 1, 256), np.linspace(0, 1, len(_STOPS)), channel) for channel in _rgb(_STOPS).T], 1
).round().astype(np.uint8)  # fmt: skip
"""The colours of 0 to 255 in maps of uncertainty, (256, 3): lighter is less certain, also for colour-blind readers."""
STROKES = tuple(colour for _, _, colour in (SERIES[1], SERIES[0], *SERIES[2:]))
"""The colours of the outlines of class 1, 2, ..., repeating; those for dark backgrounds."""
COLOURS = _rgb(STROKES).astype(np.uint8)


def png(pixels: np.ndarray, palette: np.ndarray | None = None) -> bytes:
    """A PNG file of uint8 pixels: grey (height, width), RGB (height, width, 3), or indices of a palette (256, 3).

    Grey may have a last dimension of 1, too.

    >>> png(np.zeros((2, 2), np.uint8))[:4]
    b'\\x89PNG'
    """
    height, width = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    kind = 3 if palette is not None else 2 if pixels.shape[2:] == (3,) else 0
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    data = np.concatenate([np.zeros((height, 1), np.uint8), lines], 1).tobytes()  # each line begins with its filter
    return b"".join([
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
        *([] if palette is None else [chunk(b"PLTE", palette.tobytes())]),
        chunk(b"IDAT", zlib.compress(data, 9)),
        chunk(b"IEND", b""),
    ])  # fmt: skip


def shades(values: np.ndarray, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Values from low to high as uint8 from 0 to 255, clipped.

    >>> shades(np.array([-1.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    """
    scaled = (np.asarray(values, dtype=np.float64) - low) / ((high - low) or 1.0)
    return (np.nan_to_num(scaled.clip(0, 1)) * 255).round().astype(np.uint8)


def picture(image: np.ndarray) -> np.ndarray:
    """Inputs of a network (channels, height, width) as uint8 pixels, scaled from their minimum to their maximum.

    Three channels are taken for RGB (height, width, 3); of other numbers the first is shown in grey (height, width).
    """
    chosen = np.moveaxis(image, 0, -1) if len(image) == 3 else image[0]
    return shades(chosen, float(np.nanmin(chosen)), float(np.nanmax(chosen)))


def thinned(values: np.ndarray, largest: int = LARGEST) -> np.ndarray:
    """Every k-th pixel of (..., height, width), so that neither side has more than ``largest``."""
    step = -(-max(values.shape[-2:]) // largest)
    return values[..., ::step, ::step]


def outline(mask: np.ndarray) -> str:
    """The border of a bool mask as an SVG path, along the edges of its pixels.

    >>> outline(np.array([[False, True, True]]))
    'M1 0H3M1 1H3M1 0V1M3 0V1'
    """
    padded = np.pad(mask.astype(bool), 1)
    across, down = padded[1:, 1:-1] != padded[:-1, 1:-1], padded[1:-1, 1:] != padded[1:-1, :-1]
    lines = [f"M{x} {y}H{stop}" for y, row in enumerate(across) for x, stop in _runs(row)]
    return "".join(lines + [f"M{x} {y}V{stop}" for x, column in enumerate(down.T) for y, stop in _runs(column)])


def drawn(pixels: np.ndarray, labels: np.ndarray, scale: int) -> np.ndarray:
    """RGB pixels of an image with the outline of each class in its colour; labels (height, width), 0 is the background.

    scale: the factor by which the image is enlarged. labels may be a bool mask.
    """
    large = coloured(pixels, scale)
    blown = np.kron(labels.astype(np.int64), np.ones((scale, scale), np.int64))
    width = max(1, scale // 3)
    for label in np.unique(blown[blown > 0]):
        mask = np.pad(blown == label, width)
        inner = mask.copy()
        for axis in (0, 1):
            for shift in range(1, width + 1):
                inner &= np.roll(mask, shift, axis) & np.roll(mask, -shift, axis)
        border = (mask & ~inner)[width:-width, width:-width]
        large[border] = COLOURS[(label - 1) % len(COLOURS)]
    return large


def coloured(pixels: np.ndarray, scale: int, palette: np.ndarray | None = None) -> np.ndarray:
    """RGB pixels, enlarged ``scale`` times, from grey or RGB pixels or indices of a palette."""
    if palette is not None:
        pixels = palette[pixels]
    elif pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, 2)
    return pixels.repeat(scale, 0).repeat(scale, 1)


def sheet(panels: Sequence[np.ndarray], gap: int = 6) -> np.ndarray:
    """RGB pictures of one size side by side on a white background."""
    height = panels[0].shape[0]
    space = np.full((height, gap, 3), 255, np.uint8)
    row = np.concatenate([part for panel in panels for part in (panel, space)][:-1], 1)
    return np.pad(row, ((gap, gap), (gap, gap), (0, 0)), constant_values=255)


def _runs(line: np.ndarray) -> list[tuple[int, int]]:
    """The (start, stop) of runs of True."""
    steps = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
    return list(zip(steps[::2].tolist(), steps[1::2].tolist(), strict=True))
