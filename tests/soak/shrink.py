"""The smallest network that fails in the same way as a given one."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection

from .graphs import judge
from .outcome import Outcome
from .program import Program


def shrunk(program: Program, kind: str) -> Program:
    """Remove pieces as long as a failure of this kind stays."""
    for smaller in program.smaller():
        if judged(smaller).kind == kind:
            return shrunk(smaller, kind)
    return program


def judged(program: Program) -> Outcome:
    """`judge` in a forked process, which may crash."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, program))
    process.start()
    there.close()
    try:
        found: Outcome = here.recv()
    except EOFError:
        process.join()
        return Outcome(f"crash {signal.Signals(-(process.exitcode or -1)).name}")
    process.join()
    return found


def _send(connection: Connection, program: Program) -> None:
    signal.alarm(60)
    try:
        outcome = judge(program)
    except Exception:  # pieces that were removed are missing
        outcome = Outcome()
    connection.send(outcome)
