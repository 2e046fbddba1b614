"""Pictures of a latent space: one code at growing length, the tree of codes, traversals; grids as PNG files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..errors import DataError, PredictionError
from ..files import write_bytes
from ..report.masks import png
from .autoencoder import Autoencoder, check_finite


def progressive(
    model: Autoencoder, n: int = 8, lengths: Sequence[int] | None = None, seed: int = 0, *, task: Any = None
) -> Tensor:
    """One draw from the prior decoded at growing length (figures 8 and 12): (lengths, n, *shape).

    lengths: a quarter, a half, three quarters and all of the code unless told.
    """
    codes = model.prior(n, seed)
    return torch.stack([model.decode(codes[:, :k], task=task) for k in lengths_of(model, lengths)])


def lengths_of(model: Autoencoder, lengths: Iterable[int] | None = None) -> list[int]:
    """Code lengths, checked; a quarter, a half, three quarters and all of the code unless told.

    >>> from leanbayes.latents.backbones import image_autoencoder
    >>> from leanbayes.latents.config import OrderedLatents
    >>> lengths_of(image_autoencoder(OrderedLatents(16), (1, 8, 8)))
    [4, 8, 12, 16]
    """
    size = model.code.size
    if lengths is None:
        return sorted({-(-size * quarter // 4) for quarter in range(1, 5)})

    def one(name: str, value: Any) -> int:
        return checks.whole_number(name, value, at_most=size, error=PredictionError)

    return _several("lengths", lengths, "code lengths", one, "try (4, 8)")


def _several(name: str, value: Any, what: str, check: Any, hint: str) -> list[Any]:
    """At least one element, each checked."""
    found = checks.iterable_of(name, value, what, check, error=PredictionError, hint=hint)
    return found or checks.refuse(name, f"several {what}", value, PredictionError, hint)


def tree(model: Autoencoder, depth: int = 4, seed: int = 0, *, task: Any = None) -> list[Tensor]:
    """Images of all codes in which every latent but the first has one of two values (figure 9).

    The values of latent i are a draw from the prior and its negative. Level k, from 1 to ``depth``, holds the
    2^(k-1) codes of length k, each beside its sibling: a tensor (2^(k-1), *shape).
    """
    depth = checks.whole_number("depth", depth, at_most=min(model.code.size, 10), error=PredictionError)
    values = model.prior(1, seed)[0]
    codes, levels = values[:1].unsqueeze(0), []
    for k in range(depth):
        if k:
            both = torch.stack([values[k], -values[k]])
            codes = torch.cat([codes.repeat_interleave(2, 0), both.repeat(len(codes)).unsqueeze(1)], 1)
        levels.append(model.decode(codes, task=task))
    return levels


def traverse(
    model: Autoencoder,
    latents: Sequence[int] = (0, 1, 2, 3),
    values: Sequence[float] = (-2.0, -1.0, 0.0, 1.0, 2.0),
    *,
    start: Tensor | None = None,
    task: Any = None,
) -> Tensor:
    """Images of a code in which one latent takes several values: (latents, values, *shape).

    latents: which, counted from 0. start: the code of all others, (length,); zeros unless told.
    """
    size = model.code.size

    def one(name: str, value: Any) -> int:
        return checks.whole_number(name, value, at_least=0, at_most=size - 1, error=PredictionError)

    def amount(name: str, value: Any) -> float:
        return checks.number(name, value, error=PredictionError)

    which = _several("latents", latents, "numbers of latents", one, "try (0, 1)")
    steps = _several("values", values, "values", amount, "try (-1.0, 0.0, 1.0)")
    base = torch.zeros(size)
    if start is not None:
        if not isinstance(start, Tensor) or start.ndim != 1 or not 1 <= len(start) <= size:
            raise DataError(f"start: expected shape (1 to {size},), received {checks.short(start)}")
        base = torch.nn.functional.pad(start.float(), (0, size - len(start)))
    codes = base.repeat(len(which), len(steps), 1)
    for row, latent in enumerate(which):
        codes[row, :, latent] = torch.tensor(steps).to(codes)
    images = model.decode(codes.flatten(0, 1), task=task)
    return images.reshape(len(which), len(steps), *images.shape[1:])


def write_grid(path: str | os.PathLike[str], images: Tensor, columns: int | None = None, scale: int = 2) -> Path:
    """Write images in [0, 1] as a grid into a PNG file, atomically; returns its path.

    images: (n, channels, height, width), or (rows, columns, channels, height, width); 1 or 3 channels.
    columns: of n images; all in one row unless told. scale: pixels a pixel.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_grid(folder + "/a.png", torch.rand(2, 3, 1, 8, 8)).stat().st_size > 60
    True
    """
    checks.path("path", path)
    scale = checks.whole_number("scale", scale)
    if isinstance(images, Tensor) and images.ndim == 5:
        columns, images = images.shape[1], images.flatten(0, 1)
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise DataError(
            f"images: expected (n, channels, height, width) with 1 or 3 channels, received {checks.short(images)}"
        )
    check_finite("images", images)
    columns = len(images) if columns is None else checks.whole_number("columns", columns)
    images = images.detach().cpu().float().clamp(0, 1)
    lacking = -len(images) % columns
    images = torch.cat([images, images.new_ones(lacking, *images.shape[1:])])
    framed = torch.nn.functional.pad(images, (1, 1, 1, 1), value=0.5)
    rows = len(images) // columns
    channels, height, width = framed.shape[1:]
    sheet = framed.reshape(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    sheet = sheet.reshape(rows * height, columns * width, channels)
    sheet = sheet.repeat_interleave(scale, 0).repeat_interleave(scale, 1)
    return write_bytes(path, png((sheet * 255).round().to(torch.uint8).numpy()))
