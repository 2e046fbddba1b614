"""Samples of a probabilistic U-Net: 16 for each of 64 images, whose trunk runs once, against a single one.

VND-PUNet with untrained weights on images of 64 x 64 pixels, with the paper's 32-64-128-192 channels and with a quarter
of them. "one sample" and "16 samples" are `predict`, with all its averages; "pass" is a call of the model, which draws
one code. Times are of the processor, all threads together.

    python benchmarks/segmentation.py --threads 1
"""

from __future__ import annotations

import time
from typing import Any

import torch

import leanbayes as lb
from common import interleaved, parser, publish, result, timing

WIDTHS = {"full width": (32, 64, 128, 192), "quarter width": (8, 16, 32, 48)}
SAMPLES = 16


def contenders(widths: tuple[int, ...], images: int, side: int) -> dict[str, Any]:
    """What is timed."""
    torch.manual_seed(0)
    model = lb.probabilistic_unet(lb.OrderedLatents(6), (1, side, side), widths=widths)
    model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(images, 1, side, side)

    def asked(samples: int) -> Any:
        return lb.predict(model, x, samples=samples, task="segmentation")

    def called() -> Any:
        with torch.no_grad():
            return model(x)

    return {"one sample": lambda: asked(1), f"{SAMPLES} samples": lambda: asked(SAMPLES), "pass": called}


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=15).parse_args()
    torch.set_num_threads(options.threads)
    images, side = (4, 16) if options.quick else (64, 64)
    raw: dict[str, Any] = {}
    for name, widths in WIDTHS.items():
        seconds = interleaved(
            contenders(widths, images, side), 2 if options.quick else options.repeats, time.process_time
        )
        raw[name] = {who: timing(values, seconds["one sample"]) for who, values in seconds.items()}
    ratios = {
        f"{name}: {SAMPLES} samples / {base}": each[f"{SAMPLES} samples"]["seconds_min"] / each[base]["seconds_min"]
        for name, each in raw.items()
        for base in ("one sample", "pass")
    }
    rows = [(f"{name}, {who}", f"{one['seconds_min']:.4f}") for name, each in raw.items() for who, one in each.items()]
    publish(
        result("segmentation", ratios, raw, images=images, pixels=[side, side], samples=SAMPLES),
        options,
        f"{SAMPLES} samples of {images} images, {torch.get_num_threads()} threads",
        [("", "s (min)"), *rows, *((name, f"{value:.2f}x") for name, value in ratios.items())],
    )


if __name__ == "__main__":
    main()
