"""`python -m tests.soak [part ...] --cases N --seed S`, or `python -m tests.soak graphs --case SEED --show`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import Counter

from .worker import outcomes

PARTS = ("graphs", "transforms", "memory", "kills", "files", "calls")


def main() -> int:
    """Run the parts; 1 where a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all of them unless named")
    parser.add_argument("--cases", type=int, help="of each part; otherwise as many as the part says")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next ones count on")
    parser.add_argument("--case", type=int, metavar="SEED", help="run this one only")
    parser.add_argument("--show", action="store_true", help="print its network, made smaller where it fails")
    given = parser.parse_args()
    parts = given.parts or list(PARTS)
    if given.case is not None:
        return max(_one(part, given.case, given.show) for part in parts)
    return max(_many(part, given.cases, given.seed) for part in parts)


def _one(part: str, seed: int, show: bool) -> int:
    ((_, outcome),) = outcomes(part, range(seed, seed + 1))
    if show:
        print(importlib.import_module(f"tests.soak.{part}").show(seed, outcome))
    print(f"{part} {seed}: {outcome.failure or 'passed'} {list(outcome.notes) or ''}")
    return int(outcome.failure is not None)


def _many(part: str, cases: int | None, first: int) -> int:
    module = importlib.import_module(f"tests.soak.{part}")
    total, start = cases or module.CASES, time.monotonic()
    failures: dict[int, str] = {}
    kinds, notes = Counter[str](), Counter[str]()
    for done, (seed, outcome) in enumerate(outcomes(part, range(first, first + total)), 1):
        notes.update(outcome.notes)
        if outcome.failure is not None:
            failures[seed] = outcome.failure
            kinds[outcome.kind] += 1
        if sys.stdout.isatty() or done % max(total // 10, 1) == 0:
            line = f"{part}: {done} of {total}, {len(failures)} failed, {time.monotonic() - start:.0f} s"
            print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)
    print(f"{part}: {total} cases, {len(failures)} failed, {dict(notes)}, {time.monotonic() - start:.0f} s")
    for kind, count in kinds.most_common():
        print(f"  {count:5d}  {kind}")
    for seed, failure in list(failures.items())[:40]:
        print(f"  python -m tests.soak {part} --case {seed} --show   # {failure[:150]}")
    weak = module.weakness(total, notes) if hasattr(module, "weakness") else None
    if weak is not None:
        print(f"{part}: {weak}")
    return int(bool(failures) or weak is not None)


if __name__ == "__main__":
    sys.exit(main())
