"""The smallest network that fails in the same way as a given one."""

from __future__ import annotations

from .forked import CrashError, forked
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
    """`judge` in a process of its own; a program that cannot be built has not failed."""
    try:
        found: Outcome = forked(_judge, program)
    except CrashError as crash:
        return Outcome(f"crash {crash}")
    return found


def _judge(program: Program) -> Outcome:
    try:
        return judge(program)
    except Exception:
        return Outcome()
