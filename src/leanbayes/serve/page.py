"""The page at /: one file of HTML that loads nothing from anywhere, and says so to the browser."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

TEXT = files(__package__).joinpath("page.html").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_SCRIPTS = " ".join(_digest(text) for text in re.findall(r"<script>(.*?)</script>", TEXT, re.DOTALL))
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src blob: data:; "
    f"connect-src 'self'; script-src {_SCRIPTS}; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
