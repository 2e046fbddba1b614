"""The JSON form of results: plain values, a kind and a version."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import checks, files
from ..errors import EvaluationError

VERSION = 1


def opened(data: Any, kind: str) -> dict[str, Any]:
    """The fields of a JSON form, if it is one of this kind and not of a newer version."""
    if not isinstance(data, dict) or data.get("kind") != kind:
        found = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise EvaluationError(f"expected the JSON form of one {kind}, received {checks.short(found)}")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise EvaluationError(
            f"{kind}: expected version {VERSION} or older, received {checks.short(version)}; upgrade leanbayes"
        )
    return {k: v for k, v in data.items() if k not in ("kind", "version")}


def numbers(where: str, values: dict[Any, Any]) -> list[float]:
    """Numbers as JSON has them: None stands for NaN."""
    for key, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise EvaluationError(f"Evaluation.{where}[{key!r}]: expected a number, received {type(value).__name__}")
    try:
        return [math.nan if value is None else float(value) for value in values.values()]
    except OverflowError as error:
        raise EvaluationError(f"Evaluation.{where}: expected numbers that a float can hold ({error})") from error


def plain(value: Any) -> Any:
    """The value as plain JSON values; numbers that are not finite become None.

    >>> plain({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):  # not `type is float`: numpy's float64 is one
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise EvaluationError(f"expected a plain value, received {type(value).__name__}; convert it with float() or str()")


def save(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    """Write a JSON form, whole or not at all."""
    path = checks.path("path", path, error=EvaluationError)
    return files.write_text(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def load(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; the error says what is wrong with it."""
    path = checks.path("path", path, error=EvaluationError)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvaluationError(f"cannot read {str(path)!r} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"expected JSON in {str(path)!r}, received something else ({error})") from error
