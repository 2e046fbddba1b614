"""Formulas as MathML, which browsers show without scripts."""

from __future__ import annotations

import html
import re
import unicodedata

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
LETTER = re.compile(r'<mi mathvariant="(script|double-struck)">([A-Z])</mi>')
FUNCTION = re.compile(r"<mi>(log|exp)</mi>(?=<mi|<ms|<mn)")


def on_page_content(text: str, **_: object) -> str:
    """Replace what pymdownx.arithmatex marked in a page."""
    return FORMULA.sub(_formula, text)


def _formula(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    # Browsers ignore mathvariant, and put no space behind the name of a function.
    text = LETTER.sub(_letter, convert(html.unescape(found[3]).strip(), display=display))
    return FUNCTION.sub(r'<mi>\1</mi><mspace width="0.17em"/>', text)


def _letter(found: re.Match[str]) -> str:
    name = f"{found[1].upper()} CAPITAL {found[2]}"
    try:
        return f"<mi>{unicodedata.lookup('MATHEMATICAL ' + name)}</mi>"
    except KeyError:  # the oldest of them, such as the script L, have a name without that word
        return f"<mi>{unicodedata.lookup(name)}</mi>"
