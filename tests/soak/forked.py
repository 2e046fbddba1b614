"""A function in a process of its own, which may crash."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class CrashError(Exception):
    """The process was ended by a signal, which the message names."""


def patience(seconds: int) -> int:
    """So many seconds of an idle machine, as many more as this one is busy."""
    return int(seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1)))


def forked(function: Callable[..., Any], *arguments: Any, seconds: int = 30) -> Any:
    """What a function returns in a forked process; a CrashError where that dies, by an alarm after so many seconds."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, function, arguments, seconds))
    process.start()
    there.close()
    try:
        result = here.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        raise CrashError(signal.Signals(-code).name if code < 0 else f"exit code {code}") from None
    process.join()
    return result


def _send(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: int) -> None:
    faulthandler.disable()  # the parent reports a crash
    signal.alarm(patience(seconds))
    connection.send(function(*arguments))
