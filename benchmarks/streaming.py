"""What it takes to stream a million predictions of a thousand classes through all calibration metrics.

The predictions are synthetic: logits drawn afresh for every batch, labels drawn from their softmax at twice the
temperature, so that the model is over-confident. Memory is the peak resident set of a fresh process that runs the
stream, above the peak of one that only makes batches; the seconds of making them are taken off likewise.

    python benchmarks/streaming.py
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor

from common import parser, publish, result

MEGABYTE = 1e6
LIMIT = 500.0


def batch(rows: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Probabilities and labels of one batch; the labels by the Gumbel trick."""
    logits = 4 * torch.randn(rows, classes, generator=generator)
    gumbel = -torch.empty_like(logits).exponential_(generator=generator).log()
    return logits.softmax(1), (logits / 2 + gumbel).argmax(1)


def work(points: int, classes: int, rows: int, stream: bool) -> dict[str, Any]:
    """Make all batches, feed them to the metrics if wanted, and say what that took; in a process of its own."""
    from leanbayes.evaluation import Classification

    generator = torch.Generator().manual_seed(0)
    metrics = Classification()
    began, worked, found, notes = time.perf_counter(), time.process_time(), {}, []
    for at in range(0, points, rows):
        probs, labels = batch(min(rows, points - at), classes, generator)
        if stream:
            metrics.update(probs, labels)
    if stream:
        found, notes = metrics.compute(), metrics.notes()
        assert all(len(values) == points for values in metrics.points().values())
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - worked,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "metrics": found,
        "notes": notes,
    }


def measured(options: argparse.Namespace, stream: bool) -> dict[str, Any]:
    """`work` in a fresh process."""
    words = [str(v) for v in (options.points, options.classes, options.rows, options.threads, int(stream))]
    done = subprocess.run([sys.executable, __file__, "--work", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def main() -> None:
    """Measure, print and write."""
    if sys.argv[1:2] == ["--work"]:
        points, classes, rows, threads, stream = map(int, sys.argv[2:])
        torch.set_num_threads(threads)
        print(json.dumps(work(points, classes, rows, bool(stream))))
        return
    arguments = parser(__doc__, repeats=1)
    arguments.add_argument("--points", type=int, default=1_000_000)
    arguments.add_argument("--classes", type=int, default=1000)
    arguments.add_argument("--rows", type=int, default=1000, help="of a batch")
    options = arguments.parse_args()
    if options.quick:
        options.points, options.classes, options.rows = 2000, 20, 500
    torch.set_num_threads(options.threads)
    baseline = measured(options, stream=False)
    runs = [measured(options, stream=True) for _ in range(options.repeats)]
    memory = max((max(run["peak"] for run in runs) - baseline["peak"]) / MEGABYTE, 1.0)  # less is noise
    seconds = max(min(run["seconds"] for run in runs) - baseline["seconds"], 1e-6)
    cpu = max(min(run["cpu_seconds"] for run in runs) - baseline["cpu_seconds"], 1e-6)  # for a machine that is shared
    raw = {
        "batches alone": {
            "seconds": baseline["seconds"],
            "cpu_seconds": baseline["cpu_seconds"],
            "peak_megabytes": baseline["peak"] / MEGABYTE,
        },
        "with all metrics": {
            "seconds": [run["seconds"] for run in runs],
            "cpu_seconds": [run["cpu_seconds"] for run in runs],
            "peak_megabytes": [run["peak"] / MEGABYTE for run in runs],
        },
        "memory_megabytes": memory,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "cpu_microseconds_per_point": 1e6 * cpu / options.points,
        "metrics": runs[0]["metrics"],
        "notes": runs[0]["notes"],
    }
    ratios = {
        f"memory above the batch / {LIMIT:g} MB": memory / LIMIT,
        "metrics / making the batches, CPU seconds": cpu / baseline["cpu_seconds"],
    }
    settings = {"points": options.points, "classes": options.classes, "rows": options.rows}
    rows = [
        ("", "seconds", "CPU seconds", "peak MB"),
        (
            "batches alone",
            f"{baseline['seconds']:.1f}",
            f"{baseline['cpu_seconds']:.1f}",
            f"{baseline['peak'] / MEGABYTE:.0f}",
        ),
        ("the metrics", f"{seconds:.1f}", f"{cpu:.1f}", f"+{memory:.0f}"),
    ]
    title = f"{options.points:,} predictions of {options.classes:,} classes"
    publish(result("streaming", ratios, raw, **settings), options, title, rows)


if __name__ == "__main__":
    main()
