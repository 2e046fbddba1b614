"""Small grey images as SVG, sharp at any size, which follow the light or dark theme of the page."""

from __future__ import annotations

from collections.abc import Sequence

from .parts import text


def gallery(title: str, images: Sequence[Sequence[Sequence[float]]], captions: Sequence[str], caption: str) -> str:
    """A card of images, each a matrix of numbers from 0 (paper) to 1 (ink), with captions.

    >>> gallery("Digits", [[[0.0, 1.0]]], ["a 1, taken for a 7"], "Two pixels.").count("<rect")
    1
    """
    cells = "".join(
        f"<figure>{_image(image, words)}<figcaption>{text(words)}</figcaption></figure>"
        for image, words in zip(images, captions, strict=True)
    )
    return (
        f"<div class=card><h3>{text(title)}</h3><div class=gallery>{cells}</div><p class=meta>{text(caption)}</p></div>"
    )


def _image(image: Sequence[Sequence[float]], words: str) -> str:
    pixels = "".join(
        f'<rect x="{x}" y="{y}" width="1.02" height="1.02" fill-opacity="{min(value, 1):.2f}"/>'
        for y, row in enumerate(image)
        for x, value in enumerate(row)
        if value > 0.005
    )
    size = f"0 0 {len(image[0])} {len(image)}"
    return f'<svg role="img" aria-label="{text(words)}" viewBox="{size}" fill="currentColor">{pixels}</svg>'
