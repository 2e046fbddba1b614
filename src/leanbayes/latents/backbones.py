"""Encoders and decoders for small images: that of the paper, and one that a CPU trains."""

from __future__ import annotations

from typing import Literal

from torch import nn

from .. import checks
from ..errors import ConfigError
from .autoencoder import Autoencoder
from .config import JointLatents, Latents

Backbone = Literal["small", "paper"]
PAPER_WIDTHS = (32, 64, 128, 256, 512)


def image_autoencoder(
    latents: Latents, shape: tuple[int, int, int] = (1, 28, 28), backbone: Backbone = "small", width: int = 32
) -> Autoencoder:
    """An autoencoder with a ready encoder and decoder.

    backbone: "small", two convolutions each way, for square images whose side is a multiple of 4; "paper", five
        convolutions with BatchNorm and LeakyReLU each way (section 6.2), for sides that are a multiple of 32.
    width: channels of the first convolution of the small one; the second has twice as many.

    >>> from leanbayes.latents.config import OrderedLatents
    >>> model = image_autoencoder(OrderedLatents(16), (1, 8, 8), width=4)
    >>> sum(p.numel() for p in model.parameters())
    5409
    """
    checks.instance("latents", latents, Latents, "latents such as lb.OrderedLatents(32)")
    checks.one_of("backbone", backbone, ("small", "paper"))
    checks.whole_number("width", width)
    sizes = checks.iterable_of("shape", shape, "sizes", checks.whole_number, hint="try (1, 28, 28)")
    step = 4 if backbone == "small" else 32
    if len(sizes) != 3 or sizes[1] != sizes[2] or sizes[1] % step:
        raise ConfigError(
            f"shape: expected (channels, side, side) with a side that is a multiple of {step}, received {shape}; crop, "
            "pad or enlarge the images"
        )
    size = latents.width if isinstance(latents, JointLatents) else latents.size
    make = small if backbone == "small" else paper
    encoder, decoder = make(sizes[0], sizes[1], size, width)
    return Autoencoder(encoder, decoder, latents, shape=(sizes[0], sizes[1], sizes[2]))


def small(channels: int, side: int, size: int, width: int) -> tuple[nn.Module, nn.Module]:
    """Two convolutions of 4x4 with stride 2 and a linear layer each way."""
    inner, features = 2 * width * (side // 4) ** 2, 8 * width
    encoder = nn.Sequential(
        nn.Conv2d(channels, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(inner, features),
        nn.ReLU(),
    )
    decoder = nn.Sequential(
        nn.Linear(size, features),
        nn.ReLU(),
        nn.Linear(features, inner),
        nn.ReLU(),
        nn.Unflatten(1, (2 * width, side // 4, side // 4)),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
    )
    return encoder, decoder


def paper(channels: int, side: int, size: int, width: int) -> tuple[nn.Module, nn.Module]:
    """Five convolutions of 3x3 with stride 2, BatchNorm and LeakyReLU each way; ``width`` has no part in it."""
    inner = side // 32
    down: list[nn.Module] = []
    for one, other in zip((channels, *PAPER_WIDTHS), PAPER_WIDTHS, strict=False):
        down += [nn.Conv2d(one, other, 3, stride=2, padding=1), nn.BatchNorm2d(other), nn.LeakyReLU()]
    last = PAPER_WIDTHS[-1]
    up: list[nn.Module] = [nn.Linear(size, last * inner**2), nn.Unflatten(1, (last, inner, inner))]
    widths = PAPER_WIDTHS[::-1]
    for one, other in zip(widths, (*widths[1:], widths[-1]), strict=True):
        up += [nn.ConvTranspose2d(one, other, 3, stride=2, padding=1, output_padding=1)]
        up += [nn.BatchNorm2d(other), nn.LeakyReLU()]
    up += [nn.Conv2d(widths[-1], channels, 3, padding=1)]
    return nn.Sequential(*down, nn.Flatten()), nn.Sequential(*up)
