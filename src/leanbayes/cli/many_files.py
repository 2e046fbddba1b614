"""Predictions for many files, written to one .parquet file, in this process or on a Ray cluster."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..data.image_folder import SUFFIXES, images_in
from ..errors import ArtifactError, ConfigError, DataError
from ..integrations import cluster
from ..optional import require
from ..prediction.api import predict
from .inputs import inputs_of
from .predict import Predict, table
from .saved import open_model

IMAGES = 64
"""Images in a block; any other file is a block."""
_KINDS = (".parquet", ".pq", ".npy", *SUFFIXES)


def is_pattern(name: str) -> bool:
    """Whether the text is a glob pattern and not a path."""
    return glob.has_magic(name) and not Path(name).exists()


def blocks_of(name: str) -> list[list[str]]:
    """The files of a folder or pattern, sorted, in blocks that are predicted together."""
    path = Path(name)
    found = sorted(glob.glob(name, recursive=True)) if is_pattern(name) else [name]
    if path.is_dir():
        tables = sorted(str(p) for p in path.iterdir() if p.suffix.lower() in (".parquet", ".pq", ".npy"))
        found = tables or [str(p) for p in images_in(path)]
    found = [os.path.abspath(one) for one in found if not Path(one).is_dir()]
    if not found or not all(map(os.path.isfile, found)):
        raise DataError(f"{name}: expected files that match it, received none")
    if odd := next((one for one in found if Path(one).suffix.lower() not in _KINDS), None):
        raise DataError(f"{odd}: expected .parquet, .npy or image files; others go one at a time, without --engine")
    images = [one for one in found if Path(one).suffix.lower() in SUFFIXES]
    blocks = [[one] for one in found if one not in set(images)]
    return blocks + [images[at : at + IMAGES] for at in range(0, len(images), IMAGES)]


@dataclass(frozen=True)
class Predictor:
    """A loaded model and the options of its predictions."""

    asked: Predict

    def __post_init__(self) -> None:
        object.__setattr__(self, "opened", open_model(self.asked.file, self.asked.model))

    def __call__(self, files: Sequence[str]) -> Any:
        """The predictions for a block as an Arrow table: file and row of each datum, and the columns of `table`."""
        arrow, asked = require("pyarrow", "tables", "leanbayes predict"), self.asked
        model, training = self.opened  # type: ignore[attr-defined]
        parts = [inputs_of(one, training, scaled=asked.scaled) for one in files]
        options: dict[str, Any] = {"samples": asked.samples, "seed": asked.seed, "mean_only": asked.mean_only}
        header, rows = table(predict(model, torch.cat(parts), task=asked.task, **options), training)
        where = [(one, row) for one, part in zip(files, parts, strict=True) for row in range(len(part))]
        columns = {"file": [one for one, _ in where], "row": [row for _, row in where]}
        return arrow.table(columns | {name: [row[at] for row in rows] for at, name in enumerate(header)})


def predict_files(asked: Predict) -> dict[str, Any]:
    """Write the predictions for all files to ``asked.out``, atomically; returns a summary."""
    if asked.out is None or asked.out.suffix.lower() not in (".parquet", ".pq"):
        raise ConfigError(f"--out: expected a .parquet file to write for many files, received {asked.out}")
    require("pyarrow", "tables", "leanbayes predict")
    blocks = blocks_of(str(asked.inputs))
    open_model(asked.file, asked.model)  # refuse a wrong model here, not in a worker
    make = partial(Predictor, replace(asked, file=asked.file.absolute()))  # workers have other working directories
    with ExitStack() as stack:
        if asked.engine == "ray":
            ray = stack.enter_context(cluster.connected(asked.address, "--engine ray"))
            require("ray.data", "cluster", "--engine ray")
            tables: Iterator[Any] = cluster.map_blocks(ray, make, blocks, asked.workers)
        else:
            tables = map(make(), blocks)
        count, header = _write(tables, asked.out)
    return {"columns": header, "count": count, "out": str(asked.out), "files": sum(map(len, blocks))}


def _write(tables: Iterator[Any], out: Path) -> tuple[int, list[str]]:
    """Write a row group a block to a temporary file, then rename it."""
    parquet = require("pyarrow.parquet", "tables", "leanbayes predict")
    partial_file = out.with_name(f".{out.name}.{os.getpid()}.partial")
    count, writer = 0, None
    try:
        for one in tables:
            writer = writer or parquet.ParquetWriter(partial_file, one.schema)
            writer.write_table(one.cast(writer.schema))
            count += len(one)
        assert writer is not None, "there is at least one block"
        writer.close()
        os.replace(partial_file, out)
    except OSError as error:
        raise ArtifactError(f"{out}: could not be written ({error}); what was there before is untouched") from error
    finally:
        if writer is not None:
            writer.close()
        partial_file.unlink(missing_ok=True)
    return count, list(writer.schema.names)
