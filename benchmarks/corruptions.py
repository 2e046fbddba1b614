"""Our corruptions beside the published program: the same images, the same random draws, pixel by pixel; and the time.

The reference is the program behind CIFAR-10-C, Tiny-ImageNet-C and ImageNet-C (github.com/hendrycks/robustness, folder
ImageNet-C/create_c). It is read from a folder you give and runs with what it needs: pip install opencv-python-headless
scikit-image wand, and ImageMagick's library (Debian: libmagickwand-6.q16-6). Names that numpy, scipy and scikit-image
have dropped since are replaced as it is read. Its random numbers come from our generators, so that a difference is one
of arithmetic; frost has photographs where ours has a drawing, and is compared by its statistics.

    LEANBAYES_DATA=... python benchmarks/corruptions.py --reference robustness/ImageNet-C/create_c

Without --reference only the time is measured: seconds of the processor, which other programs do not stretch.
"""

from __future__ import annotations

import re
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common import parser, publish, result
from leanbayes.data import load
from leanbayes.evaluation.corruptions import NAMES, SEVERITIES, corrupt

PROGRAMS = {32: "make_cifar_c.py", 64: "make_tinyimagenet_c.py", 224: "make_imagenet_c.py"}
DROPPED = {
    "np.float_)": "np.float64)",
    "np.fromstring": "np.frombuffer",
    "scipy.ndimage.interpolation": "scipy.ndimage",
    "multichannel=True": "channel_axis=-1",
    "mode='s&p'": "mode='s&p', rng=np.random.rng",
}


class Dice:
    """What the reference asks of numpy.random, answered by the generator that ours uses for the same image."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.normal, self.uniform, self.poisson, self.randint = rng.normal, rng.uniform, rng.poisson, rng.integers


class Numpy:
    """Numpy, with dice of one's own."""

    random: Dice

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class Reference:
    """The functions of a published program, without its main part."""

    def __init__(self, folder: Path, size: int) -> None:
        text = (folder / PROGRAMS[size]).read_text().split("# /////////////// End Distortions")[0]
        text = re.sub(r"^import torchvision.*$", "", text, flags=re.MULTILINE)
        text = text.replace("'./frost", f"'{folder.resolve()}/frost")
        for old, new in DROPPED.items():
            text = text.replace(old, new)
        self.program: dict[str, Any] = {}
        exec(compile(text, PROGRAMS[size], "exec"), self.program)
        self.program["np"] = Numpy()

    def __call__(self, image: np.ndarray, name: str, severity: int, index: int) -> np.ndarray:
        from PIL import Image

        key = (0, zlib.crc32(name.encode()), severity, index)
        self.program["np"].random = Dice(np.random.default_rng(key))
        return np.uint8(self.program[name](Image.fromarray(image), severity))


def pictures(size: int, count: int, quick: bool) -> Tensor:
    """Test images of CIFAR-10 in [0, 1], enlarged where more pixels are asked for; the digits in colour if quick."""
    data = load("digits" if quick else "cifar10")
    images = data.test.tensors[0][:count] * data.std.view(1, -1, 1, 1) + data.mean.view(1, -1, 1, 1)
    if images.shape[-1] != size:
        images = torch.nn.functional.interpolate(images, size=(size, size), mode="bicubic", antialias=True)
    return (images.clamp(0, 1) * 255).round().div(255).expand(-1, 3, -1, -1).contiguous()


def eight_bit(images: Tensor) -> np.ndarray:
    """(N, C, H, W) in [0, 1] to (N, H, W, C) bytes."""
    return np.ascontiguousarray((images * 255).round().byte().numpy().transpose(0, 2, 3, 1))


def psnr(images: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Decibels, an image."""
    squared = ((images.astype(float) - others) ** 2).mean((1, 2, 3))
    return 10 * np.log10(255**2 / np.maximum(squared, 1e-3))


def cell(clean: Tensor, reference: Reference | None, name: str, severity: int, repeats: int) -> dict[str, Any]:
    """One corruption at one severity: how much it changes, how far ours is from the reference, and the seconds."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        images = corrupt(clean, name, severity)
        times.append(time.process_time() - began)
    found: dict[str, Any] = {"severity": severity, "seconds": min(times)}
    ours, before = eight_bit(images), eight_bit(clean)
    found["change"] = float(np.abs(ours.astype(float) - before).mean())
    if reference is None:
        return found
    began = time.process_time()
    theirs = np.stack([reference(image, name, severity, i) for i, image in enumerate(before)])
    found["reference_seconds"] = time.process_time() - began
    gap = np.abs(ours.astype(float) - theirs)
    quality, other = psnr(ours, before), psnr(theirs, before)
    return found | {
        "reference_change": float(np.abs(theirs.astype(float) - before).mean()),
        "difference": float(gap.mean()),
        "within_one": float((gap <= 1).mean()),
        "psnr": [float(quality.mean()), float(quality.std())],
        "reference_psnr": [float(other.mean()), float(other.std())],
    }


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=3)
    options.add_argument("--reference", type=Path, help="the folder ImageNet-C/create_c of the published program")
    options.add_argument("--images", type=int, nargs=3, default=(300, 30, 3), help="how many of 32, 64, 224 pixels")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    counts = dict(zip(PROGRAMS, (8, 2, 0) if given.quick else given.images, strict=True))
    repeats = 1 if given.quick else given.repeats
    raw: dict[str, Any] = {}
    for size, count in counts.items():
        if count:
            clean = pictures(size, count, given.quick)
            reference = Reference(given.reference, size) if given.reference else None
            for name in NAMES:
                corrupt(clean[:1], name, 1)  # what is cached is not timed
                raw[f"{name}, {size} pixels"] = [cell(clean, reference, name, s, repeats) for s in SEVERITIES]
    slowest = {name: max(row["seconds"] for row in rows) for name, rows in raw.items()}
    if given.reference:
        ratios = {
            f"{name}: ours / reference, seconds": sum(row["seconds"] for row in rows)
            / sum(row["reference_seconds"] for row in rows)
            for name, rows in raw.items()
        }
    else:
        ratios = {f"{name}: seconds / contrast": slowest[name] / slowest["contrast, 32 pixels"] for name in raw}
    publish(
        result("corruptions", ratios, raw, images=counts, data="digits" if given.quick else "cifar10 test"),
        given,
        "Change and difference in 8-bit units, severities 1 to 5; processor seconds of the slowest severity",
        [("", "change", "reference", "difference", "within one", "seconds"), *map(_row, raw.items())],
    )


def _row(entry: tuple[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    name, rows = entry
    columns = [
        " ".join(f"{row[k]:.2f}" for row in rows if k in row) for k in ("change", "reference_change", "difference")
    ]
    least = min((row["within_one"] for row in rows if "within_one" in row), default=None)
    return (name, *columns, "" if least is None else f"{least:.4f}", f"{max(row['seconds'] for row in rows):.2f}")


if __name__ == "__main__":
    main()
