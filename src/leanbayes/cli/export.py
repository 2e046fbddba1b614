"""`leanbayes export`: a saved network as one graph, ONNX or torch, that answers with its uncertainty."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import ConfigError
from . import checks


@dataclass(frozen=True)
class Export:
    """Write a saved network as one graph, .onnx or .pt2: probabilities or means, and how sure it is.

    Args:
        file: a model that leanbayes train or leanbayes.save wrote.
        out: the file to write; its name says which format.
        samples: networks drawn from the posterior.
        seed: of the draws that are stored.
        noise: frozen stores the drawn networks; graph draws new ones in every call; mean is one pass at the means;
            moments one pass of means and variances.
        width: of a nested network, the part of its channels to keep.
        shape: of one datum, such as 1 28 28, where the file does not say.
        keep_samples: return what every drawn network said as well.
        format: where the name of the file does not say it.
        task: what the outputs mean, where the file does not say.
        model: your own network as package.module:factory, where the file does not hold one of the library's.
        json: print JSON instead of text.
    """

    file: Annotated[Path, tyro.conf.Positional]
    out: Annotated[Path, tyro.conf.Positional]
    samples: int = 32
    seed: int = 0
    noise: Literal["frozen", "graph", "mean", "moments"] = "frozen"
    width: float | None = None
    shape: tuple[int, ...] = ()
    keep_samples: bool = False
    format: Literal["onnx", "torch"] | None = None
    task: Literal["classification", "segmentation", "regression"] | None = None
    model: str | None = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        """Write the graph."""
        checks.counts(samples=self.samples)
        checks.seed(self.seed)
        checks.targets(out=self.out)

        import torch

        import leanbayes as lb

        from ..convert import record
        from .saved import open_model

        model, training = open_model(self.file, self.model)
        shape = self.shape or tuple(training.input_shape or ())
        if not shape:
            raise ConfigError(f"--shape: {self.file} does not say what a datum looks like; add --shape 1 28 28, say")
        if training.classes and not (known := record.ensure(model)).classes:
            known.classes = tuple(training.classes)
        scaled = training.mean is not None and training.std is not None and len(shape) == 3
        pixels = lb.Pixels(tuple(training.mean or ()), tuple(training.std or ())) if scaled else None
        example = torch.zeros(2, *shape, dtype=next((p.dtype for p in model.parameters()), torch.float32))
        written = lb.export(
            model,
            self.out,
            example,
            self.samples,
            self.seed,
            width=self.width,
            noise=self.noise,
            format=self.format,
            task=self.task,
            keep_samples=self.keep_samples,
            pixels=pixels,
            metadata={"training": asdict(training)},
        )
        size = written.stat().st_size
        if not self.json:
            print(f"wrote {written}, {size / 2**20:.1f} MB")
        return {"out": str(written), "bytes": size}
