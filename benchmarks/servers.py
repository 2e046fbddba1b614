"""`leanbayes serve` beside LitServe: the same models, requests and batches behind both.

LitServe 0.2 with its own batching (at most 32 requests, 2 ms), two workers, its faster queue; the model is called as
`leanbayes serve` calls it, with `predict` of 16 samples. Requests are JSON, since LitServe takes no .npy bodies. Both
servers are up at once and take turns: one client, then 50. Answers a second of the server's processor time are what a
busy machine disturbs least. Two networks: the narrow ResNet of benchmarks/serve.py, and one layer, where the server is
most of the work.

    pip install litserve
    python benchmarks/servers.py --threads 1
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from common import result
from serve import (
    CLIENTS,
    HERE,
    SAMPLES,
    free_port,
    leanbayes_command,
    load,
    prepare,
    report,
    served,
    server_parser,
)

NETWORKS = {"ResNet-18, width 16": {"SERVE_WIDTH": "16"}, "one layer": {"SERVE_NETWORK": "linear"}}
SERVERS = ("leanbayes serve", "LitServe")


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Every server under one client and under 50, in turns."""
    seconds, least, rounds = (2, 3, 1) if options.quick else (options.seconds, 30, options.repeats)
    ports = {name: free_port() for name in SERVERS}
    lit = [sys.executable, str(HERE / "lit_app.py"), str(folder), str(ports["LitServe"])]
    lit += [str(number) for number in (options.threads, options.workers, options.max_batch)]
    commands = {"leanbayes serve": leanbayes_command(folder, ports["leanbayes serve"], options), "LitServe": lit}
    found: dict[str, dict[str, list[Any]]] = {name: {"one client": [], "50 clients": []} for name in SERVERS}
    logs = {name: folder / f"{name}.log" for name in SERVERS}
    with (
        served(commands["leanbayes serve"], ports["leanbayes serve"], logs["leanbayes serve"]) as own,
        served(commands["LitServe"], ports["LitServe"], logs["LitServe"]) as other,
    ):
        for number in range(-1, rounds):  # the first round pays for code paths that are new
            for name, process in zip(SERVERS, (own, other), strict=True):
                one = load(folder, ports[name], 1, 2, process, 3 if number < 0 else least, "json")
                many = load(folder, ports[name], CLIENTS, 4 if number < 0 else seconds, process, 0, "json")
                if number >= 0:
                    found[name]["one client"].append(one)
                    found[name]["50 clients"].append(many)
    return {
        f"{name}, {kind}": {
            **{
                key: statistics.median(r[key] for r in rows) for key in ("answers_per_second", "answers_per_cpu_second")
            },
            **{key: statistics.median(r[key] for r in rows) for key in ("p50_seconds", "p99_seconds")},
            **{key: sum(r[key] for r in rows) for key in ("answers", "errors", "wrong")},
            "largest_gap": max(r["largest_gap"] for r in rows),
        }
        for name, kinds in found.items()
        for kind, rows in kinds.items()
    }


def main() -> None:
    """Measure, print and write."""
    given = server_parser(__doc__, repeats=3, seconds=15.0).parse_args()
    torch.set_num_threads(given.threads)
    raw: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, variables in NETWORKS.items():
        os.environ.pop("SERVE_NETWORK", None)
        os.environ.update(variables | ({"SERVE_WIDTH": "4"} if given.quick else {}))
        with tempfile.TemporaryDirectory() as made:
            prepare(Path(made))
            seen = measure(Path(made), given)
        raw |= {f"{name}, {row}": values for row, values in seen.items()}
        for kind in ("one client", "50 clients"):
            own, other = (seen[f"{server}, {kind}"] for server in SERVERS)
            for key, said in (
                ("answers_per_second", "throughput"),
                ("answers_per_cpu_second", "answers per CPU second"),
            ):
                ratios[f"{name}, {kind}, {said}: leanbayes serve / LitServe"] = own[key] / other[key]
    import litserve

    settings = {"samples": SAMPLES, "workers": given.workers, "max_batch": given.max_batch, "cpus": os.cpu_count()}
    report(result("servers", ratios, raw, litserve=litserve.__version__, **settings), given)


if __name__ == "__main__":
    main()
