"""Builds the C kernels with the package, where a compiler is found; without one the package is pure Python.

No -march=native: the library carries code for several instruction sets and chooses at run time. It is not linked to a
thread pool of its own: at run time it takes torch's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # `python hatch_build.py` needs no build system
    BuildHookInterface = object

FOLDER = Path("src/leanbayes/kernels/native")
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]


class KernelBuild(BuildHookInterface):
    """Compile, and ship the library in a wheel for this platform; any failure leaves a pure package and says so."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        try:
            built = build(root / FOLDER)
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", None) or error
            print(f"leanbayes: building without compiled kernels ({told})", file=sys.stderr)
            return
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"][str(built)] = "leanbayes/kernels/native/kernels.so"


def build(folder: Path, target: Path | None = None, extra: Sequence[str] = ()) -> Path:
    """Compile and link to ``target``, kernels.so in the folder by default, which is replaced only by a whole new one.

    extra: more flags for both steps, behind the usual ones.
    """
    target = folder / "kernels.so" if target is None else target
    if sys.platform != "linux":
        raise OSError("they are built on Linux only so far")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if compiler is None:
        raise OSError("no C compiler found")
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        compiled, linked = Path(work, "kernels.o"), Path(work, "kernels.so")
        # two steps: with -fopenmp the linker would add a thread pool beside torch's
        for command in (
            [compiler, *FLAGS, *extra, "-c", str(folder / "kernels.c"), "-o", str(compiled)],
            [compiler, *extra, "-shared", str(compiled), "-o", str(linked), "-lm"],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        return linked.replace(target)


if __name__ == "__main__":
    print(build(Path(__file__).parent / FOLDER))
