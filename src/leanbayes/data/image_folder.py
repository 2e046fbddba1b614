"""Folders of images, a folder a class, and single images."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from ..errors import DataError, LeanBayesWarning
from ..optional import require

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_GREY, _COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
_MOST = 2**31  # bytes of all images together


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """The images of each class by the name of its folder, sorted, without hidden files."""
    found = {}
    loose, other = [], []
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if not child.is_dir():
            loose.append(child)
            continue
        files = [path for path in sorted(child.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        images = [path for path in files if path.suffix.lower() in SUFFIXES]
        other += [path for path in files if path.suffix.lower() not in SUFFIXES]
        if not images:
            raise DataError(f"{child}: expected images of the class {child.name!r}, received none; remove the folder")
        found[child.name] = images
    images = [path for path in loose if path.suffix.lower() in SUFFIXES]
    if not found or images:
        received = f"the image {images[0].name}" if images else "none"
        raise DataError(f"{folder}: expected a folder for each class and nothing else, received {received}")
    if other or loose:
        skipped = [*other, *loose]
        warnings.warn(
            f"{folder}: {len(skipped)} files that are no images are left out, such as {skipped[0].name}",
            LeanBayesWarning,
            stacklevel=4,
        )
    return found


def images_in(path: Path) -> list[Path]:
    """An image, or all images of a folder and its subfolders, sorted."""
    if path.is_file():
        return [path]
    found = [p for p in sorted(path.rglob("*")) if p.is_file() and p.suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(f"{path}: expected images ({', '.join(sorted(SUFFIXES))}), received none")
    return found


def read_images(paths: list[Path], *, size: int = 0, channels: int | None = None) -> np.ndarray:
    """Images as uint8 (n, channels, height, width), grey if ``channels`` is 1, or if it is None and all images are.

    size: the side of a square to resize them to; 0 requires images of one size.
    """
    require("PIL", "images", "folders of images")
    from PIL import Image, ImageOps

    pictures: list[np.ndarray] = []
    grey = channels == 1 or (channels is None and all(_mode(path) in _GREY for path in paths))
    for path in paths:
        try:
            with Image.open(path) as opened:
                if opened.mode not in (*_GREY, *_COLOUR):
                    raise DataError(f"{path}: expected 8 bits a colour, received an image of mode {opened.mode!r}")
                if grey and opened.mode not in _GREY:
                    raise DataError(f"{path}: expected a grey image as in training, received one of colours")
                image = ImageOps.exif_transpose(opened).convert("L" if grey else "RGB")
                if size:
                    image = image.resize((size, size), Image.Resampling.BILINEAR)
                pictures.append(np.asarray(image, dtype=np.uint8))
        except DataError:
            raise
        except Exception as error:
            raise _unreadable(path, error) from error
        if pictures[-1].shape != pictures[0].shape:
            (h, w), (h0, w0) = pictures[-1].shape[:2], pictures[0].shape[:2]
            raise DataError(
                f"{path}: expected an image of {w0}x{h0} pixels, as {paths[0].name} is, received {w}x{h}; "
                "give a size to resize all to: size=32, --size 32"
            )
        if pictures[0].nbytes * len(paths) > _MOST:
            raise DataError(
                f"{paths[0].parent}: expected at most {_MOST / 2**30:.0f} GB of pixels, received {len(paths):,} images "
                f"of {pictures[0].nbytes:,} bytes; give a smaller size, or loaders of your own (--data module:function)"
            )
    stacked = np.stack(pictures)
    return stacked[:, None] if grey else np.ascontiguousarray(stacked.transpose(0, 3, 1, 2))


def _mode(path: Path) -> str:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.mode
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: expected a readable image ({type(error).__name__}: {str(error)[:120]})")
