"""The methods: one folder each. A config imports no torch; its implementation stands in a module beside it."""

from typing import Any

from ..method import Method as Method
from ..registry import methods as _registered


def __getattr__(name: str) -> Any:
    """A method by its name, wherever it comes from."""
    if not name.startswith("_") and name[:1].isupper() and name in _registered():
        return _registered()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["Method", *_registered()]
