"""A sparse training step beside another busy process, by how threads wait: OMP_WAIT_POLICY, read when torch starts.

Threads of one step wait for each other several times a layer. By default they spin meanwhile, on a processor that
another process would use, and may wait for a thread that does not run at all. Each setting is a process of its own that
times steps of the sparse ResNet-18 or LeNet-5 at 5 %; the busy process computes without end on one thread.

    python benchmarks/busy.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from common import parser, publish, result
from leanbayes.cli.memory import keep_freed_memory
from sparse import NEVER, network, problems, sparse_rules

SETTINGS = {
    "two threads": {"OMP_NUM_THREADS": "2"},
    "two threads, passive": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
STEPS = {"resnet18_cifar": 4, "lenet5": 100}
CHILD = "--child"


def steps(name: str, quick: bool) -> list[float]:
    """Seconds of each step of a network, after two that are not timed."""
    keep_freed_memory()
    task = next(p for p in problems(quick, 32 if quick else 128) if p.name == name)
    contender = network(task, sparse_rules(task, 0.05, NEVER), torch.contiguous_format)
    found = []
    for _ in range(2 + (3 if quick else STEPS[name])):
        start = time.perf_counter()
        contender.step()
        found.append(time.perf_counter() - start)
    return found[2:]


def measure(name: str, busy: int, setting: str, quick: bool) -> dict[str, Any]:
    """The steps of a process with a setting, beside so many busy ones."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        command = [sys.executable, __file__, CHILD, name, *["--quick"] * quick]
        done = subprocess.check_output(command, env={**os.environ, **SETTINGS[setting]}, text=True)
    finally:
        for process in beside:
            process.kill()
            process.wait()
    seconds = json.loads(done)
    return {"median": statistics.median(seconds), "least": min(seconds), "steps": len(seconds)}


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=1).parse_args()
    rows: list[tuple[str, ...]] = [("", "alone, ms", "beside a busy process, ms")]
    raw: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name in STEPS:
        for setting in SETTINGS:
            found = [measure(name, busy, setting, options.quick) for busy in (0, 1)]
            raw[f"{name}, {setting}"] = found
            times = [each["median"] for each in found]
            ratios[f"{name}, {setting}: busy / alone"] = times[1] / times[0]
            rows.append((f"{name}, {setting}", *(f"{1e3 * t:.1f}" for t in times)))
    processors = len(os.sched_getaffinity(0))
    title = f"A sparse step at 5 %, {processors} processors"
    publish(result("busy", ratios, raw, processors=processors), options, title, rows)


if __name__ == "__main__":
    if CHILD in sys.argv:
        print(json.dumps(steps(sys.argv[sys.argv.index(CHILD) + 1], "--quick" in sys.argv)))
    else:
        main()
