"""Reading a file or folder of the user, before anything is learned from it or scaled."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError
from .image_folder import SUFFIXES, class_folders, images_in, read_images
from .npz import read_npy, read_npz
from .preparation import Preparation
from .tables import Table, read_table

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
_INPUTS = ("x", "inputs", "input", "images", "data", "features")
_TARGETS = ("y", "targets", "target", "labels", "label")
_PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Rows:
    """Inputs and targets of some data: a `Table` or an array, and an array or None."""

    inputs: Table | np.ndarray
    targets: np.ndarray | None

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, index: np.ndarray) -> Rows:
        """The rows at some positions."""
        inputs = self.inputs.rows(index) if isinstance(self.inputs, Table) else self.inputs[index]
        return Rows(inputs, None if self.targets is None else self.targets[index])


@dataclass(frozen=True)
class Raw:
    """The data of a source.

    kind: `Preparation.source`. parts: "train" alone, or the parts of the source. advice: how to give targets.
    """

    kind: str
    parts: dict[str, Rows]
    target: str = ""
    full_scale: float = 1.0
    advice: str = ""

    def joined(self) -> Rows:
        """All data if the source has one part, otherwise the test part."""
        return next(iter(self.parts.values())) if len(self.parts) == 1 else self.parts["test"]


def is_source(name: str) -> bool:
    """Whether a name is a file or folder rather than a published data set.

    >>> is_source("digits"), is_source("cars.csv"), is_source("./digits")
    (False, True, True)
    """
    suffix = Path(name).suffix.lower()
    return suffix in (*TABLES, ".npz", ".npy", *SUFFIXES) or name.startswith((".", "/", "~")) or Path(name).is_dir()


def read(path: Path, target: str | None, size: int, known: Preparation | None) -> Raw:
    """The data of a source; known: the preparation of a trained model that they must fit, if any."""
    path = path.expanduser()
    if not path.exists():
        raise DataError(f"{path}: expected a file or folder, received a name that does not exist")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in SUFFIXES:
        found = _images(path, size, known)
    elif suffix in TABLES:
        found = _table(path, target, known)
    elif suffix == ".npz":
        found = _npz(path, target, known)
    elif suffix == ".npy":
        values = None if target is None else _column(read_npy(Path(target)), Path(target))
        found = _arrays({"train": (read_npy(path), values)}, path, "")
    else:
        raise DataError(
            f"{path}: expected {', '.join((*TABLES, '.npz', '.npy'))} or a folder of images, received others"
        )
    if known is not None:
        found = like(found, known, path)
    if not all(map(len, found.parts.values())):
        raise DataError(f"{path}: expected at least one datum, received none")
    return found


def floats(inputs: Table | np.ndarray, full_scale: float) -> np.ndarray:
    """An array as float64, whole numbers divided by `full_scale`."""
    assert isinstance(inputs, np.ndarray)
    values = inputs.astype(np.float64)
    return values / full_scale if inputs.dtype.kind in "ui" and full_scale != 1 else values


def _table(path: Path, target: str | None, known: Preparation | None) -> Raw:
    table = read_table(path)
    if target is None and known is None:
        have = f"it has {_shown(table)}; pass target=..., in a command --target NAME"
        raise DataError(f"{path}: expected the name of the target column, received none; {have}")
    if target not in table.columns:
        if known is None:
            raise DataError(f"{path}: expected a column {target!r} to predict, received {_shown(table)}")
        return Raw("table", {"train": Rows(table, None)})
    return Raw("table", {"train": Rows(table, table.columns[target])}, target)


def _shown(table: Table) -> str:
    names = list(table.columns)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _npz(path: Path, target: str | None, known: Preparation | None) -> Raw:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected a .npz file, received a damaged or foreign one ({error})") from error
    inputs, targets = _by_part(names, _INPUTS), _by_part(names, _TARGETS if target is None else (target.lower(),))
    if not inputs and len(names) == 1:
        inputs = {"train": names[0]}
    if not inputs or ("train" not in inputs and len(inputs) > 1):
        raise DataError(
            f"{path}: expected arrays called x and y, or x_train, y_train, x_test, y_test, received "
            f"{', '.join(names[:12]) or 'none'}; save them with numpy.savez(path, x=..., y=...)"
        )
    if target is not None and not targets and known is None:
        raise DataError(f"{path}: expected an array {target!r} to predict, received {', '.join(names[:12])}")
    arrays = read_npz(path, [*inputs.values(), *targets.values()])
    parts = {}
    for part, name in inputs.items():
        truth = _column(arrays[targets[part]], path) if part in targets else None
        parts[part] = (arrays[name], truth)
    return _arrays(parts, path, target or "")


def _by_part(names: list[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """The first of the wanted names for each part: x, x_train, train_x."""
    found: dict[str, str] = {}
    for want in wanted:
        for name in names:
            if name.lower() == want:
                found.setdefault("train", name)
            for word, part in _PARTS.items():
                if name.lower() in (f"{want}_{word}", f"{word}_{want}"):
                    found.setdefault(part, name)
    return found


def _arrays(parts: dict[str, tuple[np.ndarray, np.ndarray | None]], path: Path, target: str) -> Raw:
    full_scale, made = 1.0, {}
    for part, (x, y) in parts.items():
        if x.ndim < 2 or x.ndim > 5 or not x.size:
            why = "; one datum needs [None]" if x.ndim < 2 else ""
            raise DataError(f"{path}: expected inputs (data, ...), received {x.dtype} of shape {x.shape}{why}")
        if y is not None and len(y) != len(x):
            raise DataError(f"{path}: expected a target for each of {len(x)} data, received {len(y)}")
        if x.ndim == 3:
            x = x[:, None]  # grey images
        elif x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
            x = x.transpose(0, 3, 1, 2)  # channels last, as most programs store images
        full_scale = 255.0 if x.dtype == np.uint8 and x.ndim > 2 else full_scale
        made[part] = Rows(x, y)
    advice = "put an array y beside x in a .npz" if path.suffix == ".npz" else "give target='labels.npy' beside it"
    return Raw("array", made, target, full_scale, advice)


def _column(values: np.ndarray, path: Path) -> np.ndarray:
    """Targets as (n,)."""
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise DataError(
            f"{path}: expected one target for each datum, shape (n,), received {values.shape}; several outputs, or "
            "labels that are one-hot, take loaders of your own"
        )
    return values


def _images(path: Path, size: int, known: Preparation | None) -> Raw:
    if known is not None:
        return _new_images(path, known)
    folders = {child.name: child for child in sorted(path.iterdir()) if child.is_dir()} if path.is_dir() else {}
    named = {_PARTS[name.lower()]: folder for name, folder in folders.items() if name.lower() in _PARTS}
    if named and len(named) == len(folders):
        if "train" not in named:
            raise DataError(f"{path}: expected a folder train beside {', '.join(folders)}, received none")
    else:
        named = {"train": path}
    if not path.is_dir():
        raise DataError(f"{path}: expected a folder of images, one folder for each class, received a single image")
    files = {part: class_folders(folder) for part, folder in named.items()}
    every = [image for classes in files.values() for images in classes.values() for image in images]
    pixels, parts, at = read_images(every, size=size), {}, 0
    for part, classes in files.items():
        labels = np.array([name for name, images in classes.items() for _ in images], dtype=object)
        parts[part] = Rows(pixels[at : at + len(labels)], labels)
        at += len(labels)
    return Raw("images", parts, full_scale=255.0)


def _new_images(path: Path, known: Preparation) -> Raw:
    """An image, or a folder of images; their folders are targets if all are classes of training."""
    if path.is_dir() and (path / "test").is_dir() and "test" not in known.classes:
        path = path / "test"
    files = images_in(path)
    pixels = read_images(files, size=known.size, channels=known.input_shape[0])
    tops = [file.relative_to(path).parts[0] if path.is_dir() else "" for file in files]
    labelled = path.is_dir() and set(tops) <= set(known.classes)
    return Raw("images", {"train": Rows(pixels, np.array(tops, dtype=object) if labelled else None)}, full_scale=255.0)


def like(found: Raw, known: Preparation, path: Path) -> Raw:
    """The data, refused unless they fit the training data in kind, shape and scale."""
    if found.kind != known.source and {found.kind, known.source} != {"array", "images"}:
        raise DataError(f"{path}: expected {_KINDS[known.source]} as in training, received {_KINDS[found.kind]}")
    for rows in found.parts.values():
        if isinstance(rows.inputs, Table):
            continue
        if rows.inputs.shape[1:] != known.input_shape:
            hint = "; train with a size to have images resized" if known.source == "images" else ""
            raise DataError(
                f"{path}: expected data of shape {known.input_shape}, as the model was trained on, received "
                f"{rows.inputs.shape[1:]}{hint}"
            )
        if known.full_scale != 1 and rows.inputs.dtype.kind == "f":
            low, high = float(np.nanmin(rows.inputs)), float(np.nanmax(rows.inputs))
            if not -0.01 <= low <= high <= 1.01:
                raise DataError(
                    f"{path}: expected whole numbers from 0 to {known.full_scale:g} as in training, or numbers from 0 "
                    f"to 1, received {low:g} to {high:g}; convert them to uint8"
                )
    return found


_KINDS = {"table": "a table with named columns", "array": "an array", "images": "images"}
