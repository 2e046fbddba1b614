"""Watch the memory of a process that predicts for long: many image sizes, many threads.

PYTHONPATH=src:. python tools/soak.py [--sizes 200] [--predictions 2000] [--threads 500]
"""

from __future__ import annotations

import argparse
import sys

from tests.kernels import soak

SIZES_LIMIT, THREADS_LIMIT = 200, 50
"""Megabytes by which memory may grow."""


def main() -> int:
    """Both runs, a line each; 1 if one of them grew too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=200)
    parser.add_argument("--predictions", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=500)
    options = parser.parse_args()
    sizes = list(range(16, 16 + options.sizes))
    largest, each, highest = (bytes_ / soak.MB for bytes_ in soak.over_sizes(sizes, options.predictions))
    fine = highest - each <= SIZES_LIMIT
    print(
        f"soak: {options.predictions} predictions on {len(sizes)} image sizes: {largest:.0f} MB after the largest, "
        f"{each:.0f} MB after one of each, then at most {highest:.0f} MB"
    )
    grown = soak.over_threads(options.threads) / soak.MB
    fine = fine and grown <= THREADS_LIMIT
    print(f"soak: {options.threads} threads with a prediction each: {grown:+.0f} MB after the first ten")
    print(f"soak: {soak.kept() / soak.MB:.0f} MB kept at the end; {'passed' if fine else 'FAILED'}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
