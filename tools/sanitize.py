"""Run random cases through the C kernels under the address and undefined-behaviour sanitizers.

    PYTHONPATH=src:. python tools/sanitize.py [--cases 2000] [--first 0]

Half of the cases are valid and compared with torch in float64, half must be refused with an error of leanbayes. The
library is built into a temporary folder; the sanitizers stop the process at the first report.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-fno-omit-frame-pointer"]
LIBRARY = "LEANBAYES_SANITIZED"
"""The environment variable by which the inner process finds the library."""


def build(folder: Path) -> Path:
    """The kernels with sanitizers, in a folder."""
    sys.path.insert(0, str(ROOT))
    import hatch_build

    return hatch_build.build(ROOT / hatch_build.FOLDER, folder / "kernels.so", FLAGS)


def environment(library: Path) -> dict[str, str]:
    """Of a Python that can load such a library: the runtime has to be there before anything else."""
    compiler = os.environ.get("CC", "gcc")
    # libstdc++ too: the sanitizer looks for its functions when it starts, before torch brings them
    names = [f"lib{name}.so" for name in ("asan", "ubsan", "stdc++")]
    found = [subprocess.check_output([compiler, f"-print-file-name={n}"], text=True).strip() for n in names]
    return {
        **os.environ,
        LIBRARY: str(library),
        "LD_PRELOAD": ":".join(str(Path(f).resolve()) for f in found),
        # Python and torch keep memory until the end on purpose: leaks are what `make soak` looks for
        # and no fake stack: it is not aligned as 64-byte vectors on the stack need it
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def run(first: int, count: int) -> int:
    """All cases on the library of the environment."""
    from leanbayes.kernels import buffers, library

    library.FILE = Path(os.environ[LIBRARY])
    buffers.SMALLEST = 2**62  # all memory from the allocator that the sanitizer watches
    if (why := library.reason()) is not None:
        print(f"sanitize: {why}")
        return 1
    from tests.kernels import broken, cases

    kinds: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(first, first + count):
        print(f"\rcase {seed}", end="", file=sys.stderr, flush=True)  # the last one, if a sanitizer stops it here
        kinds[(cases.valid if seed % 2 else broken.invalid)(seed)] += 1
    print(file=sys.stderr)
    sets = ", ".join(library.LEVELS[i] for i in cases.levels())
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    print(f"sanitize: {count} cases passed in {time.monotonic() - start:.0f} s on {sets}: {told}; no sanitizer report")
    return 0


def main() -> int:
    """Build, and run the cases in a process of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    if LIBRARY in os.environ:
        return run(options.first, options.cases)
    with tempfile.TemporaryDirectory() as folder:
        environ = environment(build(Path(folder)))
        return subprocess.run([sys.executable, *sys.argv], env=environ).returncode


if __name__ == "__main__":
    sys.exit(main())
