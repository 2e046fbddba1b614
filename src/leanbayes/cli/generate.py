"""`leanbayes generate`: images from an autoencoder with ordered latents, at any code length."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import leanbayes as lb

from .. import checks as values, config
from ..errors import ArtifactError, ConfigError
from ..latents.config import OrderedLatents
from . import checks

if TYPE_CHECKING:
    from torch import Tensor

    from ..latents.autoencoder import Autoencoder

GRID = 8


@dataclass(frozen=True)
class Generate:
    """Generate images with an autoencoder and write them as a PNG grid; with --train, train it first.

    Args:
        file: a model that this command or leanbayes.save wrote.
        out: the PNG file to write.
        kind: samples are independent draws; progressive shows one draw in every column, its code growing from row to
            row; tree gives every latent two values; traversal moves the first latents one by one.
        count: how many images, or columns of a progressive grid.
        length: how many latents to use; without it as many as are set in the model, or all.
        seed: of the draws, and of training.
        train: train an ordered autoencoder on this data set first, or on all images of this folder, and write it to
            FILE.
        size: resize the images of a folder to size x size pixels; without it they must be square and of one size.
        latents: the size of its code.
        epochs: passes over the data.
        limit: at most so many training images; without it all.
        width: channels of its first convolution.
        model: your own autoencoder as package.module:factory, where the file does not hold one of the library's.
        json: print JSON instead of text.
    """

    file: Annotated[Path, tyro.conf.Positional]
    out: Path = Path("generated.png")
    kind: Literal["samples", "progressive", "tree", "traversal"] = "samples"
    count: int = 64
    length: int | None = None
    seed: int = 0
    train: str | None = None
    size: int | None = None
    latents: int = 32
    epochs: int = 10
    limit: int | None = None
    width: int = 32
    model: str | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Write the grid."""
        checks.counts(count=self.count, latents=self.latents, epochs=self.epochs, width=self.width)
        checks.counts(length=self.length, limit=self.limit, size=self.size)
        checks.seed(self.seed)
        checks.targets(out=self.out, file=self.file if self.train else None)
        if self.train and self.model:
            raise ConfigError("--train: expected no --model, whose training is your own; drop one of them")
        if self.train and self.length is not None:  # before hours of training
            values.whole_number("--length", self.length, at_most=self.latents)

        from ..latents.pictures import write_grid

        model = self._trained() if self.train else self._opened()
        if self.length is not None:
            values.whole_number("--length", self.length, at_most=model.code.size)
        grid = self._grid(model)
        write_grid(self.out, grid, columns=min(GRID, len(grid)) if grid.ndim == 4 else None)
        if not self.json:
            print(f"wrote {self.out}: {self.kind} of {model.latents}")
        length = model.length if self.length is None else self.length
        return {"out": str(self.out), "kind": self.kind, "length": length, "size": model.code.size, "seed": self.seed}

    def _grid(self, model: Autoencoder) -> Tensor:
        import torch

        from ..latents.pictures import progressive, traverse, tree

        if self.kind == "samples":
            return model.sample(self.count, self.length, self.seed)
        if self.kind == "progressive":
            most = self.length or model.length
            return progressive(model, min(self.count, 16), sorted({-(-most * i // 8) for i in range(1, 9)}), self.seed)
        if self.kind == "traversal":
            return traverse(model, range(min(GRID, model.length)))
        levels = tree(model, min(4, self.length or model.length), self.seed)
        wide = len(levels[-1])
        return torch.stack([level.repeat_interleave(wide // len(level), 0) for level in levels])

    def _trained(self) -> Autoencoder:
        import torch

        images = self._images()[: self.limit]
        channels, height, wide = images.shape[1:]
        torch.manual_seed(self.seed)
        latents = OrderedLatents(self.latents)
        model = lb.image_autoencoder(latents, (channels, height, wide), "small", self.width)
        task = "bernoulli" if channels == 1 else "discretized-logistic"
        history = lb.fit(model, images, task=task, epochs=self.epochs, batch_size=64, seed=self.seed)
        if not self.json:
            row = history.last
            print(f"negative ELBO {row['loss']:.4g} nats, KL {row['latent_kl']:.4g} nats; wrote {self.file}")
        made = {"latents": config.to_dict(latents), "shape": [channels, height, wide], "width": self.width}
        lb.save(model, self.file, metadata={"autoencoder": made, "data": self.train})
        return model

    def _images(self) -> Tensor:
        """The training images, with pixels in [0, 1]: those of a folder, whatever their class, or of a data set."""
        import torch

        from ..data import load
        from ..data.image_folder import images_in, read_images

        folder = Path(self.train or "")
        if folder.is_dir():
            return torch.from_numpy(read_images(images_in(folder), size=self.size or 0)).float() / 255
        data = load(self.train or "", val_fraction=0, normalise=False)
        if len(data.input_shape) != 3:
            raise ConfigError(f"--train: expected a set of images, {self.train} has inputs of shape {data.input_shape}")
        images: Tensor = data.train.tensors[0]
        return images

    def _opened(self) -> Autoencoder:
        from ..artifacts import inspect
        from .networks import make

        stored = inspect(self.file).get("metadata", {}).get("autoencoder")
        if self.model is not None:
            made = make({"name": self.model, "options": {}})
        elif stored is None:
            raise ArtifactError(
                f"{self.file} does not say which autoencoder it holds; add --model package.module:factory"
            )
        else:
            try:
                latents = config.from_dict(stored["latents"])
                made = lb.image_autoencoder(latents, tuple(stored["shape"]), "small", stored["width"])
            except (ConfigError, KeyError, TypeError) as error:
                raise ArtifactError(f"{self.file}: metadata 'autoencoder': {error}") from error
        if not isinstance(made, lb.Autoencoder):
            raise ConfigError(f"--model: expected an lb.Autoencoder, received {type(made).__name__}")
        lb.load(self.file, into=made)
        return made
