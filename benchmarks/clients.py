"""Clients of a server, in a process of their own: python clients.py FOLDER PORT CLIENTS SECONDS LEAST BODY.

Without torch, so that nothing but requests takes processor time. Prints what they saw, as JSON.
"""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-4


async def client(
    port: int, requests: list[bytes], wanted: np.ndarray, start: int, until: float, least: int, seen: Any
) -> None:
    """One connection that is kept: a request, its answer checked, the next."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    number = start
    while time.monotonic() < until or len(seen["seconds"]) < least:
        at = number % len(requests)
        number += 1
        begun = time.monotonic()
        writer.write(requests[at])
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        seen["seconds"].append(time.monotonic() - begun)
        if " 200 " not in head.partition("\r\n")[0]:
            seen["errors"] += 1
            continue
        probs = np.array(json.loads(body)["predictions"][0]["probs"])
        gap = float(np.abs(probs - wanted[at]).max())
        seen["largest_gap"] = max(seen["largest_gap"], gap)
        seen["wrong"] += gap > TOLERANCE
    writer.close()


async def clients(folder: Path, port: int, count: int, seconds: float, least: int, kind: str) -> dict[str, Any]:
    """All of them at once."""

    with np.load(folder / "images.npz") as stored:
        x, wanted = stored["x"], stored["probs"]
    requests = []
    for one in x:
        body = as_body(one, kind)
        named = {"npy": "application/x-npy", "json": "application/json"}[kind]
        head = ["POST /predict HTTP/1.1", "Host: x", f"Content-Type: {named}", f"Content-Length: {len(body)}"]
        requests.append("\r\n".join([*head, "", ""]).encode() + body)
    seen: dict[str, Any] = {"seconds": [], "errors": 0, "wrong": 0, "largest_gap": 0.0}
    begun = time.monotonic()
    until = begun + seconds
    await asyncio.gather(*(client(port, requests, wanted, n, until, least, seen) for n in range(count)))
    taken, spent = sorted(seen.pop("seconds")), time.monotonic() - begun
    return {
        "clients": count,
        "seconds": spent,
        "answers": len(taken),
        "answers_per_second": len(taken) / spent,
        "p50_seconds": statistics.median(taken),
        "p99_seconds": taken[min(len(taken) - 1, int(0.99 * len(taken)))],
        **seen,
    }


def as_body(image: np.ndarray, kind: str) -> bytes:
    """An image as the body of a request, .npy or JSON."""
    if kind == "json":
        return json.dumps({"inputs": [np.round(image.astype(float), 6).tolist()]}).encode()
    file = io.BytesIO()
    np.save(file, image[None])
    return file.getvalue()


def main() -> None:
    """Send requests and print what came of them."""
    folder, port, count, seconds, least, kind = sys.argv[1:]
    seen = asyncio.run(clients(Path(folder), int(port), int(count), float(seconds), int(least), kind))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
