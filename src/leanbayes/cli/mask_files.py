"""The files of an image that `leanbayes segment` writes: masks, maps and an overview; and the numbers of its line."""

from __future__ import annotations

import math

import numpy as np

from ..evaluation.metrics.segmentation import diversity
from ..prediction import Predictive
from ..report.masks import PALETTE, coloured, drawn, picture, png, shades, sheet, thinned

SHOWN = 6
PANEL = 192  # pixels of a panel of the overview


def pictures(image: np.ndarray, prediction: Predictive, threshold: float | None, count: int) -> dict[str, bytes]:
    """PNG files by name for one image (channels, height, width) and its prediction with samples."""
    masks = prediction.masks(threshold)[:count, 0].cpu().numpy()
    two, top = masks.dtype == bool, math.log(prediction.probs.shape[1])
    maps = {
        "mean.png": shades(1 - prediction.probs[0, 0].cpu().numpy()),
        "entropy.png": shades(prediction.entropy[0].cpu().numpy(), 0, top),
        "mutual_information.png": shades(prediction.mutual_information[0].cpu().numpy(), 0, top),
    }
    drawn = {f"sample-{i:02d}.png": (255 * mask if two else mask).astype("uint8") for i, mask in enumerate(masks, 1)}
    files = {name: png(pixels) for name, pixels in {**drawn, **maps}.items()}
    return {"overview.png": overview(image, masks, maps), **files}


def overview(image: np.ndarray, masks: np.ndarray, maps: dict[str, np.ndarray]) -> bytes:
    """A PNG of the image, the outlines of samples and the maps in colours, each with its name above."""
    from PIL import Image, ImageDraw, ImageFont

    pixels = picture(thinned(image, 2 * PANEL))
    scale = max(1, PANEL // max(pixels.shape[:2]))
    panels = [coloured(pixels, scale)]
    panels += [drawn(pixels, thinned(mask, 2 * PANEL), scale) for mask in masks[:SHOWN]]
    panels += [coloured(thinned(part, 2 * PANEL), scale, PALETTE) for part in maps.values()]
    names = [f"sample {i}" + ("" if mask.any() else ": empty") for i, mask in enumerate(masks[:SHOWN], 1)]
    names = ["image", *names, *(name.removesuffix(".png").replace("_", " ") for name in maps)]
    row = np.pad(sheet(panels), ((16, 0), (0, 0), (0, 0)), constant_values=255)
    canvas = Image.fromarray(row)
    pen, font, step = ImageDraw.Draw(canvas), ImageFont.load_default(), panels[0].shape[1] + 6
    for at, name in enumerate(names):
        pen.text((8 + at * step, 6), name, fill=(60, 60, 60), font=font)
    return png(np.asarray(canvas))


def numbers(prediction: Predictive, threshold: float | None) -> list[float]:
    """The summary of one image: mean and standard deviation over samples of the share of the foreground, mean entropy
    and mutual information of a pixel, and the diversity of samples.
    """
    masks = prediction.masks(threshold)
    share = (masks != 0).double().flatten(1).mean(1)
    classes = prediction.probs.shape[1]
    apart = diversity(masks[:, 0], num_classes=classes if classes > 2 else None) if len(masks) > 1 else 0.0
    doubt = prediction.entropy.mean(), prediction.mutual_information.mean()
    return [float(number) for number in (share.mean(), share.std(unbiased=False), *doubt, apart)]
