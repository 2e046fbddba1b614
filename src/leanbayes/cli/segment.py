"""`leanbayes segment`: samples of masks and maps of uncertainty for images, as PNG files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .. import checks as values, files
from ..errors import ConfigError, DataError
from ..optional import require
from . import checks
from .predict import as_csv

if TYPE_CHECKING:
    from torch import Tensor

    from .saved import Training


@dataclass(frozen=True)
class Segment:
    """Segment images with a saved network: samples of masks, the mean and maps of uncertainty, as PNG files.

    Args:
        file: a model that leanbayes train or leanbayes.save wrote.
        images: an image, a folder of images (with those of its subfolders), or a .npy array (images, channels, height,
            width) of pixels from 0 to 1.
        out: a folder, with a folder for each image: overview.png, sample-01.png, ..., mean.png (probability of the
            foreground), entropy.png and mutual_information.png (white is the logarithm of the number of classes); and
            summary.csv, a line an image.
        samples: networks drawn from the posterior, each of which gives a mask.
        masks: how many of them to write.
        threshold: of two classes, the probability above which a pixel belongs to the second.
        length: how many latents to use, of a network with ordered latents.
        width: the part of the channels to use, of a nested network.
        size: resize images to size x size pixels.
        seed: of the draws.
        scaled: pixels from 0 to 1 are what the network takes.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        json: print JSON instead of text.
    """

    file: Annotated[Path, tyro.conf.Positional]
    images: Annotated[Path, tyro.conf.Positional]
    out: Path = Path("segmented")
    samples: int = 16
    masks: int = 8
    threshold: float | None = None
    length: int | None = None
    width: float | None = None
    size: int | None = None
    seed: int = 0
    scaled: bool = False
    model: str | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Write the files."""
        checks.counts(samples=self.samples, masks=self.masks, length=self.length, size=self.size)
        checks.seed(self.seed)
        if self.width is not None:
            values.number("--width", self.width, above=0, at_most=1)
        checks.fractions(threshold=self.threshold)
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out: expected a folder, {self.out} is a file")
        if not self.images.exists():
            raise DataError(f"{self.images}: expected an image, a folder of images or a .npy array, there is none")
        checks.targets(out=self.out / "summary.csv" if self.out.is_dir() else self.out)
        require("PIL", "images", "leanbayes segment")

        import leanbayes as lb

        from .mask_files import numbers, pictures
        from .saved import open_model

        model, training = open_model(self.file, self.model)
        if training.mean is None and not self.scaled:
            raise DataError(
                f"{self.file} does not say how images were scaled in training, and predictions for other scales are "
                "wrong; pass --scaled if the network takes pixels from 0 to 1"
            )
        if self.length is not None:
            lb.set_length_(model, self.length)
        if self.width is not None:
            lb.set_width_(model, self.width)
        for _, pixels in self._images(training):  # what cannot be read is found before anything is written
            self._inputs(pixels, training)
        rows: list[list[Any]] = []
        for name, pixels in self._images(training):
            prediction = lb.predict(
                model, self._inputs(pixels, training), self.samples, self.seed, task=_task(model), keep_samples=True
            )
            folder = self.out / name
            folder.mkdir(parents=True, exist_ok=True)
            found = pictures(pixels[0].numpy(), prediction, self.threshold, self.masks)
            for file, picture in found.items():
                files.write_bytes(folder / file, picture)
            rows.append([str(name), *numbers(prediction, self.threshold)])
        header = ["image", "foreground", "foreground_std", "entropy", "mutual_information", "diversity"]
        files.write_text(self.out / "summary.csv", as_csv(header, rows))
        if not self.json:
            print(f"wrote {len(rows)} folder{'s' * (len(rows) > 1)} and summary.csv to {self.out}")
        return {"out": str(self.out), "columns": header, "rows": rows}

    def _images(self, training: Training) -> Iterator[tuple[Path, Tensor]]:
        """The name and pixels from 0 to 1 of each image, (1, channels, height, width)."""
        from ..data.image_folder import SUFFIXES, images_in
        from .inputs import read

        if self.images.suffix == ".npy":
            stacked = read(self.images)
            if stacked.ndim != 4 or not 0 <= float(stacked.min()) <= float(stacked.max()) <= 1:
                raise DataError(
                    f"{self.images}: expected (images, channels, height, width) of pixels from 0 to 1, received shape "
                    f"{tuple(stacked.shape)} of numbers from {float(stacked.min()):g} to {float(stacked.max()):g}"
                )
            yield from ((Path(f"{i:05d}"), image.unsqueeze(0)) for i, image in enumerate(stacked))
            return
        if self.images.is_file() and self.images.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{self.images}: expected an image ({', '.join(sorted(SUFFIXES))}), a folder of images or a .npy array"
            )
        written = self.out.resolve()
        paths = [path for path in images_in(self.images) if written not in path.resolve().parents]
        root = self.images if self.images.is_dir() else self.images.parent
        names = [path.relative_to(root).with_suffix("") for path in paths]
        channels = training.input_shape[0] if training.input_shape else None
        for path, name in zip(paths, names, strict=True):
            alone = names.count(name) == 1  # a.png beside a.jpg keep their endings
            yield name if alone else path.relative_to(root), read(path, channels, self.size or 0)

    def _inputs(self, pixels: Tensor, training: Training) -> Tensor:
        """The inputs of the network for pixels from 0 to 1."""
        if training.mean is None or training.std is None or self.scaled:
            return pixels
        mean, std = (pixels.new_tensor(part).reshape(1, -1, 1, 1) for part in (training.mean, training.std))
        if mean.shape[1] != pixels.shape[1]:
            raise DataError(f"expected images of {mean.shape[1]} channels, received {pixels.shape[1]}")
        return (pixels - mean) / std


def _task(model: Any) -> Literal["segmentation"]:
    """The task "segmentation"; a model trained for another task is refused."""
    from ..convert import record

    found = record.get(model)
    kind = None if found is None or found.likelihood is None else found.likelihood.get("kind")
    if kind not in (None, "Segmentation"):
        raise ConfigError(f"expected a model of segmentation, this one was trained for {kind}; see leanbayes predict")
    return "segmentation"
