"""HTML building blocks: escaped text, and figures, tables and small images in cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def text(text: str) -> str:
    """Text escaped for HTML and attributes; a number stays on the line of its unit."""
    return escape(text).replace(" %", "&nbsp;%").replace(" ↑", "&nbsp;↑").replace(" ↓", "&nbsp;↓")


def figure(title: str, picture: str, caption: str) -> str:
    return f"<figure class=card><h3>{text(title)}</h3>{picture}<figcaption>{text(caption)}</figcaption></figure>"


def card(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th scope=col>{text(h)}</th>" for h in header)
    body = "".join(
        f"<tr><th scope=row>{text(row[0])}</th>{''.join(f'<td>{text(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    table = f"<table>{top}<tbody>{body}</tbody></table>"
    return f"<div class=card><h3>{text(title)}</h3><div class=scroll>{table}</div></div>"


def grid(cards: Iterable[str], kind: str = "grid") -> str:
    inner = "".join(cards)
    return f'<div class="{kind}">{inner}</div>' if inner else ""


def columns(cards: Iterable[str]) -> str:
    """Cards of different heights in as many columns as fit."""
    return f"<div class=columns>{''.join(cards)}</div>"


def heat_map(cells: Sequence[Mapping[str, Any]], key: str = "accuracy") -> str:
    """A table of corruptions by severities: per cent in every cell, paler for worse."""
    names = list(dict.fromkeys(str(cell["corruption"]) for cell in cells))
    levels = sorted({int(cell["severity"]) for cell in cells})
    found = {(str(cell["corruption"]), int(cell["severity"])): cell.get(key) for cell in cells}
    rows = []
    for name in names:
        body = "".join(_warm(found.get((name, level))) for level in levels)
        rows.append(f"<tr><th scope=row>{text(name.replace('_', ' '))}</th>{body}</tr>")
    head = "".join(f"<th scope=col>{level}</th>" for level in levels)
    return (
        f"<div class=scroll><table class=heat><thead><tr><th scope=col>Severity</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _warm(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "<td>–</td>"
    return f'<td style="--v:{min(max(value, 0), 1):.3f}">{100 * value:.0f}</td>'


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
