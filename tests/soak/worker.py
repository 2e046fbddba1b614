"""Cases in processes of their own, so that a crash is one failed case."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .forked import CrashError, patience
from .outcome import Outcome

SECONDS = 120
"""For one case on an idle machine; then its process is killed by an alarm signal."""
ROOT = Path(__file__).parents[2]


def outcomes(part: str, seeds: range) -> Iterator[tuple[int, Outcome]]:
    """Seed and outcome of each case, in order; a worker that dies is replaced."""
    left = seeds
    while left:
        command = [sys.executable, "-m", "tests.soak.worker", part, str(left.start), str(left.stop), str(left.step)]
        seed = left.start
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield seed, Outcome(**json.loads(line))
                seed += left.step
        left = range(seed, left.stop, left.step)
        if left and process.returncode < 0:
            yield seed, Outcome(f"crash {signal.Signals(-process.returncode).name}")
            left = left[1:]
        elif left:
            raise RuntimeError(f"the worker of {part} ended at seed {seed} with code {process.returncode}")


def main(part: str, start: int, stop: int, step: int) -> None:
    """Run cases, one line of JSON each."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the cases print must not come between
    case = importlib.import_module(f"tests.soak.{part}").case
    for seed in range(start, stop, step):
        signal.alarm(patience(SECONDS))
        try:
            outcome: Outcome = case(seed)
        except CrashError as error:
            outcome = Outcome(f"crash {error} of a process of the case")
        lines.write(json.dumps({"failure": outcome.failure, "notes": outcome.notes}) + "\n")
        lines.flush()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
