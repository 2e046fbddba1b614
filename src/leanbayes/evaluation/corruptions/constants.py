"""The corruptions by name, and how strong each is at every severity: the published constants, in constants.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

NAMES = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen corruptions in the order of the paper: noise, blur, weather, digital."""

SEVERITIES = (1, 2, 3, 4, 5)


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def constants(name: str, severity: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The published constants for an image of (..., H, W): by its shorter side, as they are, never rescaled.

    Below 64 pixels those of CIFAR-10-C, from 64 to 127 those of Tiny-ImageNet-C, from 128 those of ImageNet-C.

    >>> constants("gaussian_noise", 3, (3, 32, 32)), constants("gaussian_noise", 3, (3, 224, 224))
    ((0.08,), (0.18,))
    """
    side = min(shape[-2:])
    table = "cifar" if side < 64 else "tiny" if side < 128 else "imagenet"
    found = _tables()[table][name][severity - 1]
    if (table, name) == ("imagenet", "elastic_transform"):
        return tuple(244 / 224 * value for value in found)
    return tuple(found) if isinstance(found, list) else (found,)
