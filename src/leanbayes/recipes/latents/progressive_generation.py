"""Figures 8, 9, 12 and 13 of variational nested dropout: one draw from the prior decoded at growing code length.

The paper shows pictures. Where pieces are kept (``--resume FOLDER``) PNG grids are written beside them: draws at
growing length (a row a length), the tree of figure 9, traversals of the first latents, and reconstructions. Measured
are the standard deviation of a pixel between generated images (how different they are), by how much images change from
one length to the next, and their distance from test images.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...evaluation.generation import features_of
from ...evaluation.metrics.generative import frechet_distance, manifold_metrics
from ...latents.autoencoder import Autoencoder
from ...latents.pictures import progressive, traverse, tree, write_grid
from ..experiment import Cell, Experiment
from ..figures.charts import lines
from ..jobs import Jobs
from ..results import Measured
from .networks import EXTRACTOR, SETUPS, Setup

METHODS = ("VND-AE", "nested dropout")


def cells(preset: str) -> Iterator[Cell]:
    """A row for every model and length; the setting is the length."""
    for setup in SETUPS[preset]:
        for (method, quarter), training in setup.trainings().items():
            if method in METHODS and quarter == 4:
                key = {**training.key(), "figure": "progressive", "generated": setup.generated}
                label = f"{method} on {training.data}"
                work = partial(measured, setup, method)
                yield Cell(training.data, method, setup.size, key, work, seeds=1, label=label)


def measured(setup: Setup, method: str, jobs: Jobs, seed: int) -> Measured:
    """How images change with the length of their code; pictures, where there is a folder for them."""
    model, data = setup.model(jobs, method, seed)
    images = data.test.tensors[0]
    lengths = sorted({1, 2, 4, *(setup.at(quarter) for quarter in (1, 2, 3, 4))})
    if jobs.folder is not None:
        pictures(model, images, jobs.folder / f"{method} on {setup.training.data}".replace(" ", "-"), lengths)
    extractor = setup.features(jobs)
    count = min(setup.generated, len(images))
    real = features_of(extractor, images[:count])
    made = progressive(model, count, lengths, seed)
    moved = [0.0, *(float((b - a).abs().mean()) for a, b in pairwise(made))]
    rows: list[dict[str, Any]] = []
    for length, drawn, change in zip(lengths, made, moved, strict=True):
        features = features_of(extractor, drawn)
        found = {"setting": length, "pixel std": float(drawn.std(0).mean()), "change": change}
        found[f"feature distance ({setup.extractor_name})"] = frechet_distance(real, features)
        rows.append({**found, **manifold_metrics(real, features)})
    rows.append({"setting": 0, "method": "test images", "pixel std": float(images[:count].std(0).mean())})
    return {"rows": rows}


def pictures(model: Autoencoder, images: Tensor, stem: Path, lengths: list[int]) -> list[Path]:
    """Write the grids; returns their paths."""
    levels = tree(model, 4, seed=2)
    blank = torch.ones_like(levels[0])
    rows = [torch.cat([level, blank.expand(8 - len(level), *blank.shape[1:])]) for level in levels]
    shown = images[:10]
    grids = {
        "progressive": progressive(model, 16, lengths),
        "tree": torch.stack(rows),
        "traversal": traverse(model, range(8), torch.linspace(-2.5, 2.5, 11).tolist()),
        "reconstructions": torch.stack([shown, *(model.reconstruct(shown, k) for k in lengths)]),
    }
    return [write_grid(stem.with_name(f"{stem.name}-{name}.png"), grid) for name, grid in grids.items()]


SHOWN = ("pixel std", f"feature distance ({EXTRACTOR})")
FIGURE = lines("Longer codes, more varied images", "code length", SHOWN, METHODS)
EXPERIMENT = Experiment("progressive-generation", cells, figure=FIGURE)
