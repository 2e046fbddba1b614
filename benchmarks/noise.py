"""The noise of local reparameterisation, mean + sqrt(variance) * eps: the compiled pass, and torch's several.

On the output of a convolution (128 images, 64 channels, 32 x 32) in both memory formats. "torch" is the same with
``torch.randn_like``. Ratios are torch's time over the compiled one's.

    python benchmarks/noise.py
"""

from __future__ import annotations

from typing import Any

import torch

from common import interleaved, parser, publish, result, timing
from leanbayes.cli.memory import keep_freed_memory
from leanbayes.kernels import library
from leanbayes.layers import perturb

FORMATS = {"default": torch.contiguous_format, "channels last": torch.channels_last}


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=9).parse_args()
    torch.set_num_threads(options.threads)
    kept = keep_freed_memory()
    shape = (2, 4, 8, 8) if options.quick else (128, 64, 32, 32)
    raw: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for name, order in FORMATS.items():
        mean, variance = (torch.rand(shape).contiguous(memory_format=order) for _ in range(2))
        runs = {
            "compiled": lambda m=mean, v=variance: perturb.perturb(m, v),
            "torch": lambda m=mean, v=variance: perturb._Perturb.apply(m, v, torch.randn_like(v)),
        }
        seconds = interleaved(runs, 2 if options.quick else options.repeats)
        raw[name] = {who: timing(values, seconds["torch"]) for who, values in seconds.items()}
        ratios[f"{name}: torch / compiled"] = min(seconds["torch"]) / min(seconds["compiled"])
    settings = {"shape": list(shape), "kernels": library.instructions(), "freed memory is kept": kept}
    rows = [(f"{name}, {who}", f"{one['seconds_min']:.5f}") for name, each in raw.items() for who, one in each.items()]
    publish(
        result("noise", ratios, raw, **settings),
        options,
        f"Noise on {' x '.join(map(str, shape))} outputs, {torch.get_num_threads()} threads",
        [("", "s (min)"), *rows, *((name, f"{value:.1f}x") for name, value in ratios.items())],
    )


if __name__ == "__main__":
    main()
