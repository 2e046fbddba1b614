"""Forged files of every kind that the library reads: each is refused soon, with little memory, and changes nothing.

A case is a valid file, mutated, or a made-up one, read in a process of its own under a limit of memory.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from leanbayes.errors import LeanBayesError

from . import file_kinds
from .forked import CrashError, forked
from .outcome import Outcome

CASES = 1000
SECONDS, MEGABYTES, LIMIT = 2.0, 200, 600  # of processor time; beyond the file; before memory is refused
WALL_SECONDS = 60
torch.set_num_threads(1)  # threads do not survive a fork


def case(seed: int) -> Outcome:
    """One forged file."""
    kind, made = forge(seed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            said = forked(_read, kind, made, folder, seconds=WALL_SECONDS)
        except CrashError as crash:
            return Outcome(f"crash {crash}: {kind}", (kind,))
    name, failure = said
    if failure is not None and name in file_kinds.LET_THROUGH.get(kind, ()):
        return Outcome(None, (kind, f"{kind} lets {name} through"))
    return Outcome(failure and f"{failure} ({kind})", (kind, "accepted" if name == "" else "refused"))


def forge(seed: int) -> tuple[str, bytes]:
    """The kind of a file, and its content."""
    chance = random.Random(seed)
    names = list(file_kinds.KINDS)
    kind = names[seed % len(names)]
    by_hand = file_kinds.by_hand(kind)
    turn = seed // len(names)
    if turn < len(by_hand):
        return kind, by_hand[turn]
    return kind, file_kinds.KINDS[kind].forge(chance)


def show(seed: int, outcome: Outcome) -> str:
    """The start of the file of a case."""
    kind, made = forge(seed)
    return f"{kind}, {len(made):,} bytes: {made[:300]!r}"


def weakness(total: int, notes: Counter[str]) -> str | None:
    """Mutations that are all accepted, or kinds that never came up, test nothing."""
    if total >= 100 and notes["refused"] < total / 2:
        return f"expected most files to be refused, received {notes['refused']} of {total}"
    missing = [kind for kind in file_kinds.KINDS if total >= 100 and not notes[kind]]
    return f"expected files of every kind, received no {missing[0]}" if missing else None


def _read(kind: str, made: bytes, folder: str) -> tuple[str, str | None]:
    """The name of the error ("" for none), and what is wrong."""
    reader = file_kinds.KINDS[kind]
    path = Path(folder) / reader.name
    path.write_bytes(made)
    context = reader.context(path)
    before = reader.state(context)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (LIMIT * 2**20) + 4 * len(made)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    start, name, failure = time.process_time(), "", None
    try:
        reader.read(path, context)
    except LeanBayesError as error:
        name = type(error).__name__
        failure = "memory: it ran out" if _out_of_memory(error) else None
        if reader.state(context) != before or path.read_bytes() != made:
            failure = "something was changed by a file that was refused"
    except Exception as error:
        name, failure = type(error).__name__, f"raw {type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10 - resident - 4 * len(made)
    if failure is None and seconds > SECONDS:
        failure = f"slow: {seconds:.1f} s"
    if failure is None and grown > MEGABYTES * 2**20:
        failure = f"memory: {grown / 2**20:.0f} MB"
    return name, failure


def _out_of_memory(error: Any) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
