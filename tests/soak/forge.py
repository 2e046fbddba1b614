"""Seeded mutations of bytes and of JSON, as damage and malice make them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

EXTREMES = [0, 1, 2, 0x7F, 0xFF, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
STRANGE: list[Any] = [
    None, True, False, -1, 0, 1, 10**9, 2**63, -(2**63), 10**400, 1e308, -1e-320, 0.5, "", "x", "nan", "a" * 10_000,
    "\ud800", "../../etc", [], {}, [[]], [0], [-1], [1e300] * 3, {"kind": "Normal"}, {"float": "nan"}, {"": None},
    {"kind": "Ensemble", "members": 1000}, {"kind": "Patch", "components": 1000}, {"kind": "Nested", "groups": 10**9},
    {"kind": "Classification", "temperature": 0}, list(range(10_000)),
]  # fmt: skip


def bytes_mutated(data: bytes, chance: random.Random) -> bytes:
    """A few of: flipped bits, extreme numbers, cuts, repetitions, insertions, other endings."""
    made = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        at = chance.randrange(min(len(made), chance.choice([16, 256, 10**9]))) if made else 0
        to = min(len(made), at + chance.choice([1, 4, 100, 5000]))
        match chance.randrange(8):
            case 0 if made:
                made[at] ^= 1 << chance.randrange(8)
            case 1 if made:
                made[at] = chance.randrange(256)
            case 2:
                width = chance.choice([1, 2, 4, 8])
                value = chance.choice(EXTREMES) % 2 ** (8 * width)
                made[at : at + width] = value.to_bytes(width, chance.choice(["little", "big"]))  # type: ignore[arg-type]
            case 3:
                del made[at:]
            case 4:
                del made[at:to]
            case 5:
                made[at:at] = made[at:to] * chance.choice([1, 2, 50])
            case 6:
                made[at:at] = chance.randbytes(chance.choice([1, 8, 300]))
            case _:
                made += chance.choice([b"\0", b"\0" * 10_000, chance.randbytes(50), bytes(made[:100])])
    return bytes(made)


def value_mutated(value: Any, chance: random.Random) -> Any:
    """A copy of a JSON value with one or a few of its parts replaced, removed, renamed or added."""
    made = copy.deepcopy(value)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        places: list[tuple[Any, Any]] = []
        _walk(made, places)
        if not places:
            break
        holder, key = chance.choice(places)
        match chance.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(["x", "", f"{key}.0", "kind", "__metadata__"])] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder *= chance.choice([2, 100])
            case 3:
                holder[key] = [holder[key]]
            case 4 if isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
                holder[key] *= chance.choice([-1, 0, 2, 1000, 10**12])
            case _:
                holder[key] = copy.deepcopy(chance.choice(STRANGE))
    return made


def text_mutated(value: Any, chance: random.Random) -> bytes:
    """JSON of a mutated value, or JSON that is mutated itself: keys that stand twice, depth, numbers JSON has not."""
    text = json.dumps(value_mutated(value, chance) if chance.random() < 0.6 else value)
    tricks: list[Callable[[], str]] = [
        lambda: text,
        lambda: text,
        lambda: text.replace("{", '{"kind": 1, "kind": 2, ', 1),
        lambda: "[" * 100_000,
        lambda: '{"a":' * 50_000,
        lambda: text.replace(": 1", ": NaN", 1).replace(": 0.", ': -Infinity, "y": 0.', 1),
        lambda: text.replace(": 1", ": 1e999", 1),
        lambda: text.replace(": 1", ": " + "9" * 5000, 1),
        lambda: text.replace(": 1", ": " + "9" * 400, 1).replace(": 0.", ": " + "9" * 400, 1),
    ]
    made = chance.choice(tricks)().encode("utf-8", "surrogatepass")
    return bytes_mutated(made, chance) if chance.random() < 0.3 else made


def _walk(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:200]:
        places.append((value, key))
        _walk(inner, places)
