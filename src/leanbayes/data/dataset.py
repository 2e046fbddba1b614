"""A data set in memory: named parts of tensors, with the facts that a model needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler, Subset, TensorDataset

from ..checks import whole_number
from ..errors import DataError
from .preparation import Preparation

PARTS = ("train", "val", "test")


class Part(TensorDataset):
    """A TensorDataset with the names of its classes, in the attribute ``classes`` as in torchvision.

    groups: (n,), a whole number that all data of a patient share; None if the data are independent.
    """

    def __init__(self, *tensors: Tensor, classes: Sequence[str] = (), groups: Tensor | None = None) -> None:
        super().__init__(*tensors)
        self.classes, self.groups = tuple(classes), groups

    def take(self, index: Tensor) -> Part:
        """The data at some positions."""
        groups = None if self.groups is None else self.groups[index]
        return Part(*(tensor[index] for tensor in self.tensors), classes=self.classes, groups=groups)


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Parts of (inputs, targets), normalised with statistics of the training part.

    ``inputs * std + mean`` is the original, in [0, 1] for images ((n, channels, height, width), mean and std of shape
    (channels,)) and in its own unit for features ((n, features), mean and std of shape (features,)). Targets are
    labels (n,) int64, or for regression (n, 1) float32 with ``targets * y_std + y_mean`` the original; masks by four
    annotators are (n, 4, height, width) bool, with the patient of each image in ``groups`` of the part. "unlabelled"
    data have inputs alone. `preparation` is what `read` learned from data of your own.
    >>> from leanbayes.data import load
    >>> load("digits")
    DataSet('digits', classification: 1294 train, 144 val, 359 test; inputs (1, 8, 8), 10 classes)
    """

    name: str
    task: str
    parts: Mapping[str, TensorDataset]
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    y_mean: float = 0.0
    y_std: float = 1.0
    preparation: Preparation | None = None

    @property
    def train(self) -> TensorDataset:
        """The training part."""
        return self._part("train")

    @property
    def val(self) -> TensorDataset:
        """The validation part."""
        return self._part("val")

    @property
    def test(self) -> TensorDataset:
        """The test part."""
        return self._part("test")

    @property
    def num_classes(self) -> int | None:
        """The number of classes, or None if there are none."""
        return len(self.class_names) or None

    def _part(self, part: str) -> TensorDataset:
        if part in self.parts:
            return self.parts[part]
        raise DataError(
            f"{self.name}: expected a {part} part, received a data set of {', '.join(self.parts)} alone; "
            f"load it with {part!r} in parts= and val_fraction above 0, if the set has one at all"
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(part)} {name}" for name, part in self.parts.items())
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"DataSet({self.name!r}, {self.task}: {sizes}; inputs {self.input_shape}{classes})"


def class_names(data: Any) -> tuple[str, ...]:
    """The names of the classes of a data set, from its attribute ``classes`` as torchvision has it; empty without.

    >>> class_names(DataLoader(Part(torch.zeros(2, 1), classes=("cat", "dog"))))
    ('cat', 'dog')
    """
    while isinstance(data, (DataLoader, Subset)):
        data = data.dataset
    names = vars(data).get("classes") if isinstance(data, Dataset) else None
    fine = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return tuple(names) if fine else ()  # type: ignore[arg-type]


def groups_of(data: Any) -> Tensor | None:
    """The group of each datum, such as its patient, (n,); None for data without groups or a DataLoader that shuffles.
    >>> groups_of(DataLoader(Part(torch.zeros(3, 1), groups=torch.tensor([7, 7, 8]))))
    tensor([7, 7, 8])
    """
    if isinstance(data, DataLoader):
        in_order = type(data.sampler) is SequentialSampler and not data.drop_last
        return groups_of(data.dataset) if in_order else None
    if isinstance(data, Subset):
        groups = groups_of(data.dataset)
        return None if groups is None else groups[torch.as_tensor(data.indices)]
    return data.groups if isinstance(data, Part) else None


def loaders(
    dataset: DataSet, batch_size: int = 128, *, seed: int = 0, num_workers: int = 0
) -> dict[str, DataLoader[Any]]:
    """A DataLoader for each part, in the order train, val, test; only the training part is shuffled, by `seed`.

    >>> from leanbayes.data import load
    >>> train, val, test = loaders(load("digits"), batch_size=64).values()
    >>> inputs, targets = next(iter(train))
    >>> inputs.shape, targets.shape
    (torch.Size([64, 1, 8, 8]), torch.Size([64]))
    """
    whole_number("batch_size", batch_size, error=DataError)
    return {
        name: part
        if isinstance(part, DataLoader)  # from a function of the user
        else DataLoader(
            part,
            batch_size=batch_size,
            shuffle=name == "train",
            generator=torch.Generator().manual_seed(seed),
            num_workers=num_workers,
        )
        for name, part in dataset.parts.items()
    }
