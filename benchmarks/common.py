"""What the benchmarks share: interleaved timing, one shape of result, a table for people."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RESULTS = Path(__file__).parent / "results"


def digits_perceptron() -> tuple[nn.Module, Any, Tensor, Tensor]:
    """A small network with BatchNorm, a loader of the embedded digits to train it on, and test images with labels."""
    from leanbayes import data

    train, _, test = data.loaders(data.load("digits")).values()
    x, y = map(torch.cat, zip(*test, strict=True))
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    return model, train, x, y


def parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    result.add_argument("--quick", action="store_true", help="tiny networks, seconds; writes no result file")
    result.add_argument("--threads", type=int, default=2)
    result.add_argument("--repeats", type=int, default=repeats, help="timed rounds, after one that is not timed")
    result.add_argument("--output", type=Path, help="where the JSON goes; results/ of this folder unless --quick")
    return result


def started(options: argparse.Namespace) -> tuple[Callable[[], float], dict[str, Any]]:
    """The clock for so many threads, of the processor on one of them, and settings that the result says."""
    from leanbayes.cli.memory import keep_freed_memory

    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    return clock, {"freed memory is kept": keep_freed_memory(), "clock": clock.__name__}


def passes(model: nn.Module, batches: Sequence[Tensor]) -> Callable[[], None]:
    """A function that runs the model on all batches."""

    def run() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(batch)

    return run


def interleaved(
    contenders: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every contender in every round; a round runs each once, so that a slow spell hits all of them.

    clock: `time.thread_time` for one thread on a machine where others want the processor too.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(repeats + 1):
        for name, run in contenders.items():
            gc.collect()
            start = clock()
            run()
            elapsed = clock() - start
            if round_number:  # the first round pays for memory and code paths that are new
                seconds[name].append(elapsed)
    return seconds


def timing(seconds: list[float], baseline: list[float]) -> dict[str, Any]:
    """Minimum and median of the repeats, as seconds and against a baseline measured in the same rounds."""
    pairs = [one / other for one, other in zip(seconds, baseline, strict=True)]
    return {
        "seconds_min": min(seconds),
        "seconds_median": statistics.median(seconds),
        "ratio_of_minima": min(seconds) / min(baseline),
        "median_of_ratios": statistics.median(pairs),
        "repeats": len(seconds),
    }


def result(benchmark: str, ratios: Mapping[str, float], raw: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """The shape that all benchmarks print and write."""
    return {
        "benchmark": benchmark,
        "command": " ".join(["python", f"benchmarks/{benchmark}.py", *_without_output(sys.argv[1:])]),
        "threads": torch.get_num_threads(),
        "settings": {
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            # fresh memory costs page faults; tuned allocators would hide them from every contender alike
            "malloc": {k: v for k, v in os.environ.items() if k.startswith("MALLOC_") or k == "LD_PRELOAD"},
            **settings,
        },
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "raw": _rounded(raw),
    }


def publish(data: dict[str, Any], options: argparse.Namespace, title: str, rows: list[tuple[str, ...]]) -> None:
    """Print the result as JSON or as a table (header first), and write its file."""
    path = options.output or (None if options.quick else RESULTS / f"{data['benchmark']}.json")
    text = json.dumps(data, indent=1)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    if options.json:
        print(text)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=None, pad_edge=False)
    for number, column in enumerate(rows[0]):
        table.add_column(column, justify="right" if number else "left")
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)
    if path is not None:
        print(f"written to {path}")


def _without_output(arguments: list[str]) -> list[str]:
    """Where a result was written says nothing about it."""
    if "--output" not in arguments:
        return arguments
    at = arguments.index("--output")
    return arguments[:at] + arguments[at + 2 :]


def _rounded(value: Any) -> Any:
    """Six significant digits are more than a clock knows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, (list, tuple)) else value
