"""The command line: a file a command, options generated from the same dataclasses that the library uses.

Exit codes: 0 done; 1 the work failed (a loss that is not finite, a metric that is undefined, nobody left to read the
output); 2 it could not start (an unknown option, name, file or setting); 130 interrupted. Answers go to stdout, and
with --json nothing but one JSON document does; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, Union

from .._version import __version__
from ..errors import EvaluationError, LeanBayesError, LeanBayesWarning, PredictionError, TrainingError
from ..files import plain
from . import memory

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = (
    "demo", "train", "evaluate", "predict", "segment", "generate", "compress", "distill", "export", "serve", "plan",
    "bench", "reproduce",
)  # fmt: skip
"""In the order of the help; each is a dataclass of its name in a module of its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    leanbayes ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command: Any = None
    try:
        if given in (["--version"], ["version"]):
            print(f"leanbayes {__version__}")
            return DONE
        command = _parse(given)
        if arguments is None:  # the process is ours
            memory.keep_freed_memory()
        with _short_warnings():
            result = command.run()
        if command.json:
            print(json.dumps(plain(result), indent=1, allow_nan=False))
        sys.stdout.flush()
        return DONE
    except SystemExit as stop:  # tyro has printed the help, or what is wrong
        return _refused(given) if stop.code else DONE
    except LeanBayesError as error:
        return _complain(error, "--json" in given)
    except KeyboardInterrupt:
        advice = command.go_on() if hasattr(command, "go_on") else ""
        print(f"\ninterrupted{advice}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output (head, less) has left; Python would complain again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parse(arguments: list[str]) -> Any:
    import tyro

    from .choices import closest, without_examples

    commands: dict[str, Any] = {name: vars(import_module(f".{name}", __name__))[name.capitalize()] for name in COMMANDS}
    first = arguments[0] if arguments else "--help"
    conf = tyro.conf
    config = (conf.OmitSubcommandPrefixes, conf.OmitArgPrefixes, conf.FlagCreatePairsOff, conf.DisallowNone)
    with without_examples():
        if first in commands:  # build the options of one command only: help is quick
            return tyro.cli(commands[first], prog=f"leanbayes {first}", args=arguments[1:], config=config)
        if not first.startswith("-"):
            print(f"leanbayes: unknown command {first!r}; {closest(first, COMMANDS)}", file=sys.stderr)
            raise SystemExit(USAGE)
        choices: Any = tuple(Annotated[c, tyro.conf.subcommand(n, description=_line(c))] for n, c in commands.items())
        every: Any = Union[choices]  # noqa: UP007  (made at run time)
        description = "Make the PyTorch network you already have Bayesian, at a cost you can pay."
        return tyro.cli(every, prog="leanbayes", description=description, args=arguments or ["--help"], config=config)


def _line(command: type) -> str:
    return (command.__doc__ or "").partition("\n")[0]


def _refused(arguments: list[str]) -> int:
    """Add to tyro's message what it does not say: the name that was probably meant, and JSON for machines."""
    from .choices import misspelt

    for wrong, right in misspelt(arguments[1:]):
        print(f"leanbayes: {wrong!r}: did you mean {right!r}?", file=sys.stderr)
    if "--json" in arguments:
        print(json.dumps({"error": {"type": "UsageError", "message": "unknown or ill-typed arguments; see stderr"}}))
    return USAGE


def _complain(error: LeanBayesError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
    print(f"leanbayes: {error}", file=sys.stderr)
    return FAILED if isinstance(error, (TrainingError, PredictionError, EvaluationError)) else USAGE


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Our own warnings as one line, without the line of code that raised them."""
    usual = warnings.showwarning

    def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
        if issubclass(category, LeanBayesWarning):
            print(f"leanbayes: warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *rest, **options)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual
