"""How strong is severity 3: the published constants of the fifteen corruptions, for three sizes of image.

The tables are those of CIFAR-10-C (32 pixels), Tiny-ImageNet-C (64) and ImageNet-C (224) by Hendrycks & Dietterich
2019, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations"; a row has severities 1 to 5.
"""

from __future__ import annotations

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

_Row = tuple[tuple[float, ...], ...]


def _singles(*values: float) -> _Row:
    return tuple((value,) for value in values)


# What the numbers mean: the parameters of the function of that name in noise.py, blur.py, weather.py, digital.py.
_CIFAR: dict[str, _Row] = {
    "gaussian_noise": _singles(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _singles(500, 250, 100, 75, 50),
    "impulse_noise": _singles(0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _singles(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _singles(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    "pixelate": _singles(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _singles(80, 65, 58, 50, 40),
}

_TINY: dict[str, _Row] = {
    "gaussian_noise": _singles(0.04, 0.08, 0.12, 0.15, 0.18),
    "shot_noise": _singles(250, 100, 50, 30, 15),
    "impulse_noise": _singles(0.01, 0.02, 0.05, 0.08, 0.14),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": _singles(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _singles(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
    "pixelate": _singles(0.9, 0.8, 0.7, 0.6, 0.5),
    "jpeg_compression": _singles(65, 58, 50, 40, 25),
}

_244 = 244 / 224  # the published elastic transform of 224-pixel images was scaled for 244

_IMAGENET: dict[str, _Row] = {
    "gaussian_noise": _singles(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _singles(60, 25, 12, 5, 3),
    "impulse_noise": _singles(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _singles(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _singles(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": tuple(
        (_244 * a, _244 * b, _244 * c)
        for a, b, c in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    ),
    "pixelate": _singles(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _singles(25, 18, 15, 10, 7),
}


def constants(name: str, severity: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The published constants for an image of (..., H, W): by its shorter side, as they are, never rescaled.

    Below 64 pixels those of CIFAR-10-C, from 64 to 127 those of Tiny-ImageNet-C, from 128 those of ImageNet-C.

    >>> constants("gaussian_noise", 3, (3, 32, 32)), constants("gaussian_noise", 3, (3, 224, 224))
    ((0.08,), (0.18,))
    """
    side = min(shape[-2:])
    table = _CIFAR if side < 64 else _TINY if side < 128 else _IMAGENET
    return table[name][severity - 1]
