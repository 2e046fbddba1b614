"""What it takes to get the same numbers again."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from typing import Any

from .._version import __version__


def reproduction(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an evaluation, the command that ran it and the versions it ran on, all plain values.

    >>> sorted(reproduction({"samples": 8})["versions"])
    ['leanbayes', 'numpy', 'python', 'torch']
    """
    import numpy
    import torch

    plain = {k: v if isinstance(v, (bool, int, float, str, list, type(None))) else str(v) for k, v in options.items()}
    return plain | {
        "command": command(sys.argv),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {
            "leanbayes": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def command(argv: list[str]) -> str | None:
    """The command line of this process as one would type it; None in a notebook or an interactive session.

    >>> command(["/usr/local/bin/leanbayes", "evaluate", "my model.safetensors"])
    "leanbayes evaluate 'my model.safetensors'"
    >>> command(["train.py", "--epochs", "3"])
    'python train.py --epochs 3'
    """
    program = argv[0] if argv else ""
    if program in ("", "-", "-c", "-m") or "ipykernel" in program:
        return None
    if program.endswith("__main__.py"):
        return shlex.join(["python", "-m", os.path.basename(os.path.dirname(program)), *argv[1:]])
    if program.endswith(".py"):
        return shlex.join(["python", program, *argv[1:]])
    return shlex.join([os.path.basename(program), *argv[1:]])
