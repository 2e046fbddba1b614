"""Common corruptions of images (Hendrycks & Dietterich 2019): noise, blur, weather, digital, five severities each."""

from __future__ import annotations

import difflib
import zlib
from typing import TYPE_CHECKING, Any

from ... import checks
from ...checks import whole_number
from ...errors import EvaluationError
from ...optional import require
from .constants import NAMES, SEVERITIES, constants

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["NAMES", "SEVERITIES", "constants", "corrupt", "names"]

_ROOMS = {"noise": NAMES[:3], "blur": NAMES[3:7], "weather": NAMES[7:11], "digital": NAMES[11:]}

_SCENERY = ("snow", "frost")

_VALUES = 1 << 20
"""Values corrupted at a time; bounds memory and does not change the result."""

_SMALLEST = 8


def names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """The corruptions that suit images of (C, H, W).

    All fifteen, except for greyscale images below 32 pixels such as MNIST, where snow and frost are left out: those
    images are drawings on black, not scenes.

    >>> len(names((3, 32, 32))), len(names((1, 28, 28)))
    (15, 13)
    """
    if len(shape) < 3 or shape[-3] not in (1, 3) or min(shape[-2:]) < _SMALLEST:
        raise EvaluationError(
            f"corruptions: expected images (C, H, W) of 1 or 3 channels and at least {_SMALLEST} x {_SMALLEST} pixels, "
            f"received shape {tuple(shape)}"
        )
    drawing = shape[-3] == 1 and min(shape[-2:]) < 32
    return tuple(name for name in NAMES if not (drawing and name in _SCENERY))


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, start: int = 0) -> Tensor:
    """Corrupt images (N, C, H, W) in [0, 1]; returns the same shape, dtype and device, in steps of 1/255.

    The images are rounded to 8 bits first, the result is cut to 8 bits (rounded down, as in the published data sets).
    The constants of each severity are in `constants`. Image i has its own generator, keyed by (seed, name, severity,
    start + i), so that the result does not depend on the batch.

    >>> import torch
    >>> images = torch.rand(4, 3, 32, 32)
    >>> whole = corrupt(images, "fog", 3)
    >>> torch.equal(corrupt(images[2:], "fog", 3, start=2), whole[2:])
    True
    >>> corrupt(images, "frog", 3)
    Traceback (most recent call last):
    leanbayes.errors.EvaluationError: corruption: expected one of ..., received 'frog'; did you mean 'fog'?
    """
    check_name(name)
    check_severity(severity)
    for what, value in (("seed", seed), ("start", start)):
        whole_number(what, value, at_least=0, error=EvaluationError)
    _check_images(images, start)
    for package in ("scipy", "PIL"):
        require(package, "evaluation", "corrupt")
    import numpy as np
    import torch

    if not len(images):
        return images.clone()
    settings, function = constants(name, severity, tuple(images.shape)), _function(name)
    pixels = np.round(255 * images.detach().cpu().double().numpy().transpose(0, 2, 3, 1)).clip(0, 255)
    key, chunk = zlib.crc32(name.encode()), max(1, _VALUES // images[0].numel())
    done = np.empty_like(pixels)
    from .filters import eight_bit

    for at in range(0, len(pixels), chunk):
        part = pixels[at : at + chunk] / 255
        draws = [np.random.default_rng((seed, key, severity, start + at + i)) for i in range(len(part))]
        done[at : at + chunk] = eight_bit(function(part, draws, *settings))
    result = torch.from_numpy(np.ascontiguousarray(done.transpose(0, 3, 1, 2)))
    return (result / 255).to(images.device, images.dtype)


def check_name(name: Any) -> None:
    """Refuse an unknown corruption, and suggest the closest name."""
    if name not in NAMES:
        close = difflib.get_close_matches(str(name).lower().replace(" ", "_").replace("-", "_"), NAMES, n=1, cutoff=0.4)
        raise EvaluationError(
            f"corruption: expected one of {', '.join(NAMES)}, received {checks.short(name)}"
            + (f"; did you mean {close[0]!r}?" if close else "")
        )


def check_severity(severity: Any) -> None:
    """Refuse a severity that is not a whole number from 1 to 5."""
    whole_number("severity", severity, at_most=max(SEVERITIES), error=EvaluationError)


def _function(name: str) -> Callable[..., Any]:
    from importlib import import_module

    room = next(room for room, inside in _ROOMS.items() if name in inside)
    function: Callable[..., Any] = vars(import_module(f".{room}", __name__))[name]
    return function


def _check_images(images: Any, start: int) -> None:
    """Refuse images that are not floating point (N, C, H, W) in [0, 1]; the error names the offending datum."""
    import torch

    if not isinstance(images, torch.Tensor) or images.ndim != 4:
        found = f"shape {tuple(images.shape)}" if isinstance(images, torch.Tensor) else type(images).__name__
        raise EvaluationError(f"images: expected a tensor of shape (N, C, H, W), received {found}")
    if not images.is_floating_point():
        raise EvaluationError(
            f"images: expected floating point values in [0, 1], received {images.dtype}; try images.float() / 255"
        )
    names(tuple(images.shape[1:]))
    if not len(images):
        return
    low, high = images.detach().aminmax()
    half = 0.5 / 255  # removed by rounding to 8 bits
    if -half <= float(low) and float(high) <= 1 + half:  # False for NaN too
        return
    flat = images.detach().flatten(1).float()
    bad = ~((flat >= -half) & (flat <= 1 + half)).all(1)
    row = int(bad.nonzero()[0, 0])
    values = flat[row]
    value = float(values[~((values >= -half) & (values <= 1 + half))][0])
    raise EvaluationError(
        f"images[{start + row}]: expected pixels in [0, 1], received {value:.6g}; "
        f"if the inputs are normalised, pass leanbayes.Pixels(mean=..., std=...)"
    )
