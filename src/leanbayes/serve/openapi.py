"""What a server takes and answers, as OpenAPI says it, and a page of it for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from .._version import __version__
from . import bodies
from .config import Settings
from .options import Option
from .predictor import Card

_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_MAYBE = {"type": ["number", "null"]}


def document(card: Card, settings: Settings, options: Mapping[str, Option]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a model."""
    parameters = [
        {"name": name, "in": "query", "description": option.about, "schema": option.schema}
        for name, option in options.items()
    ]
    refusals = {
        "400": "The body or an option is not what the model takes.",
        "408": "The body did not arrive in time.",
        "413": f"The body has more than {settings.max_body:,} bytes.",
        "415": "The body is of another type.",
        "429": "Too many requests are under way, or the deadline has passed; Retry-After says when to ask again.",
        "500": "The server failed.",
    }
    predict = {
        "summary": "Predictions with their uncertainty",
        "operationId": "predict",
        "parameters": parameters,
        "requestBody": {"required": True, "content": _contents(card, settings, options)},
        "responses": {
            "200": _response("Predictions, one for each datum.", _answer(card)),
            **{code: _response(about, _ERROR) for code, about in refusals.items()},
        },
    }
    alive = {"200": _response("It does.", {"type": "object"}), "503": _response("It does not.", _ERROR)}
    text = {"200": {"description": "Text.", "content": {"text/plain": {"schema": _TEXT}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"leanbayes {card.task}", "version": __version__},
        "paths": {
            "/predict": {"post": predict},
            "/model": {"get": _get("What the model takes", {"200": _response("The model.", {"type": "object"})})},
            "/health": {"get": _get("Whether the worker runs", alive)},
            "/ready": {"get": _get("Whether the worker takes requests", alive)},
            "/metrics": {"get": _get("Counters in the format of Prometheus", text)},
        },
    }


def documentation(found: Mapping[str, Any]) -> str:
    """A page that lists every address with its options and answers; it needs nothing from elsewhere."""
    parts = [f"<h1>{escape(found['info']['title'])}</h1><p><a href='openapi.json'>openapi.json</a></p>"]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {path}</code></h2><p>{escape(operation['summary'])}</p>")
            rows = [(p["name"], p["description"], _shown(p["schema"])) for p in operation.get("parameters", ())]
            parts += ["<h3>Options</h3>" + _rows(rows)] if rows else []
            content = operation.get("requestBody", {}).get("content", {})
            rows = [(kind, _shown(c["schema"]), _shown(c.get("example", ""))) for kind, c in content.items()]
            parts += ["<h3>Bodies</h3>" + _rows(rows)] if rows else []
            rows = [(code, r["description"], "") for code, r in operation["responses"].items()]
            parts.append("<h3>Answers</h3>" + _rows(rows))
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem}"
        "td{padding:.2rem .8rem .2rem 0;vertical-align:top;overflow-wrap:anywhere}"
    )
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>leanbayes serve</title>"
    return f"<!DOCTYPE html><html lang='en'>{head}<style>{style}</style><main>{''.join(parts)}</main></html>"


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["status", "message"],
            "properties": {"status": {"type": "integer"}, "message": _TEXT},
        }
    },
}


def _contents(card: Card, settings: Settings, options: Mapping[str, Option]) -> dict[str, Any]:
    datum: dict[str, Any] = _NUMBER
    for size in reversed(card.shape):
        datum = {"type": "array", "items": datum, "minItems": size, "maxItems": size}
    if card.columns:
        cells = {name: {"type": ["number", "string", "null"]} for name in card.columns}
        datum = {"type": "object", "required": list(card.columns), "properties": cells}
    inputs = {"type": "array", "items": datum, "minItems": 1, "maxItems": settings.max_rows}
    properties = {"inputs": inputs, **{name: option.schema for name, option in options.items()}}
    schema = {"type": "object", "required": ["inputs"], "properties": properties, "additionalProperties": False}
    found: dict[str, Any] = {bodies.JSON: {"schema": schema}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    if not card.columns:
        found[bodies.NPY] = binary
    if len(card.shape) == 3 and card.shape[0] in (1, 3):
        found |= dict.fromkeys(bodies.IMAGES, binary)
    return found


def _answer(card: Card) -> dict[str, Any]:
    several = {"type": "array", "items": _NUMBER}
    common = {"abstained": {"type": "boolean"}, "reasons": {"type": "array", "items": _TEXT}}
    if card.task == "classification":
        numbers = dict.fromkeys(("confidence", "entropy", "mutual_information"), _NUMBER)
        one = {"label": {"type": ["string", "null"]}, **numbers, "probs": several, "std": several, **common}
        extra: dict[str, Any] = {"set": {"type": "array", "items": _TEXT}} if card.coverage is not None else {}
    else:
        either = {"type": ["number", "array", "null"]}
        one = {"mean": either, "std": either, "epistemic_std": either, "interval": {"type": "array"}, **common}
        extra = {"conformal_interval": {"type": "array"}} if card.coverage is not None else {}
    prediction = {"type": "object", "required": [*one, *extra], "properties": {**one, **extra}}
    fields = {
        "task": _TEXT,
        "samples": {"type": "integer"},
        "seed": {"type": ["integer", "null"]},
        "predictions": {"type": "array", "items": prediction},
    }
    return {"type": "object", "required": list(fields), "properties": {**fields, "coverage": _MAYBE, "width": _MAYBE}}


def _response(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": responses}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."


def _rows(rows: list[tuple[str, str, str]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
