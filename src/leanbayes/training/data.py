"""The order in which training sees the data: a function of (seed, epoch), sharded over processes, resumable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from ..batches import Columns, is_table, length
from ..errors import ConfigError, DataError
from ..layers.contract import option
from ..sampling import mix
from . import rng


class Feed:
    """The batches of one process, epoch by epoch.

    An *owned* feed shuffles by itself, so that training can resume after any batch. It is made from tensors, a data
    set, or a DataLoader of a map-style data set with a default sampler. Any other iterable of batches is read as it is,
    and training can resume only at the start of an epoch.
    """

    def __init__(self, loader: Iterable[Any], order: Order | None, num_data: int | None) -> None:
        self.loader, self.order, self.num_data = loader, order, num_data

    @property
    def owned(self) -> bool:
        return self.order is not None

    def __len__(self) -> int:
        """Batches an epoch, 0 if unknown."""
        if self.order is not None:
            return len(self.order)
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch from batch `start` on."""
        if self.order is not None:
            self.order.epoch, self.order.start = number, start
        elif (set_epoch := option(option(self.loader, "sampler"), "set_epoch")) is not None:
            set_epoch(number)
        return iter(self.loader)

    def describe(self) -> dict[str, Any]:
        """The settings that must not change when a run is resumed."""
        if self.order is None:
            return {"num_data": self.num_data}
        return {"num_data": self.num_data, "batch_size": self.order.batch_size, "shuffle": self.order.shuffle}

    def generators(self) -> list[Any]:
        """The random generators of a loader that is not owned, and of its samplers."""
        if self.order is not None:
            return []
        owners, found = [self.loader], {}
        for owner in owners:
            for name, value in getattr(owner, "__dict__", {}).items():
                if isinstance(value, rng.KINDS):
                    found[id(value)] = value
                elif (isinstance(value, Sampler) or "sampler" in name) and all(value is not o for o in owners):
                    owners.append(value)
        return list(found.values())


@dataclass(eq=False)
class Order:
    """Batches of indices for one process, each preceded by the seed of its random augmentation.

    With W processes and batch size B, batch b of an epoch is data [b B W, (b + 1) B W) of the epoch's permutation, and
    process r has the r-th of W parts. In training the parts must be equal for averaged gradients to be those of the
    joined batch, so up to W - 1 data at the end of an epoch are left out; with ``even=False`` none are.
    """

    num_data: int
    batch_size: int
    _: KW_ONLY
    drop_last: bool
    shuffle: bool
    even: bool
    seed: int
    rank: int
    world: int

    def __post_init__(self) -> None:
        self.epoch = self.start = 0
        full, rest = divmod(self.num_data, self.batch_size * self.world)
        self.total = full + (not self.drop_last and rest >= (self.world if self.even else 1))

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[list[int]]:
        indices = self.permutation()
        joined = self.batch_size * self.world
        for number in range(self.start, self.total):
            block = indices[number * joined : (number + 1) * joined]
            part = len(block) // self.world if self.even else math.ceil(len(block) / self.world)
            mine = block[self.rank * part : (self.rank + 1) * part]
            if mine:
                yield [mix(self.seed, self.epoch, number, self.rank), *mine]

    def permutation(self) -> list[int]:
        """The indices of this epoch in their order, the same on every process."""
        if not self.shuffle:
            return list(range(self.num_data))
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        return torch.randperm(self.num_data, generator=generator).tolist()


class Keyed(Dataset):
    """A data set whose random augmentation is seeded by the batch, whatever the workers and earlier draws."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, keyed: list[int]) -> list[Any]:
        key, *indices = keyed
        with rng.seeded_host(key):
            several = option(self.dataset, "__getitems__")
            return [self.dataset[i] for i in indices] if several is None else several(indices)


class Rows(Dataset):
    """Batches of a TensorDataset, each by one indexing of the tensors."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.tensors = dataset.tensors

    def __getitems__(self, keyed: list[int]) -> list[Tensor]:
        indices = torch.tensor(keyed[1:])
        return [t[indices] for t in self.tensors]


def feed(source: Any, *, batch_size: int, seed: int, rank: int = 0, world: int = 1, training: bool = True) -> Feed:
    """The feed of a DataLoader, a data set, tensors, or any iterable of batches.

    batch_size (per process) is for data sets and tensors; a loader has its own.

    >>> batches = feed((torch.arange(5.0), torch.arange(5)), batch_size=2, seed=0)
    >>> len(batches), [len(x) for x, y in batches.epoch(0)], [len(x) for x, y in batches.epoch(0, start=2)]
    (3, [2, 2, 1], [1])
    """
    loader = _loader(source, batch_size)
    num_data = None if loader is None else _length(loader)
    if loader is None or not _ownable(loader):
        if not isinstance(source, Iterable) or isinstance(source, (Tensor, str, dict, Iterator)):
            raise DataError(
                "expected a DataLoader, a data set, a tuple of tensors (x, y) or an iterable that can be read once an "
                f"epoch, received {type(source).__name__}"
            )
        return Feed(source, None, num_data)
    assert num_data is not None  # an ownable loader has a data set with a length
    sampler = loader.sampler
    shuffle = training and (
        sampler.shuffle if isinstance(sampler, DistributedSampler) else isinstance(sampler, RandomSampler)
    )
    order = Order(
        num_data,
        loader.batch_size or 1,
        drop_last=training and loader.drop_last,
        shuffle=shuffle,
        even=training,
        seed=seed,
        rank=rank,
        world=world,
    )
    if not len(order):
        raise DataError(
            f"expected at least one batch an epoch, received {num_data} data with batch_size={loader.batch_size}, "
            f"drop_last={loader.drop_last} and {world} process(es)"
        )
    whole = type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate
    own: DataLoader[Any] = DataLoader(
        Rows(loader.dataset) if whole else Keyed(loader.dataset),  # type: ignore[arg-type]
        batch_sampler=order,  # type: ignore[arg-type]
        num_workers=loader.num_workers,
        collate_fn=default_convert if whole else loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),  # otherwise starting an epoch would draw from the noise of training
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    return Feed(own, order, num_data)


def count(source: Any) -> int:
    """The number of training data in a loader, a data set or a tuple of tensors.

    >>> count((torch.zeros(5, 3), torch.zeros(5)))
    5
    """
    loader = _loader(source, 1)
    number = length(source) if loader is None else _length(loader)
    if number is None:
        raise ConfigError(
            f"num_data: expected a loader whose data set has a length, received {type(source).__name__}; "
            "pass num_data= (the KL is divided by it)"
        )
    return number


def _loader(source: Any, batch_size: int) -> DataLoader[Any] | None:
    if isinstance(source, DataLoader):
        return source
    if isinstance(source, Mapping) and is_table(source):
        source = Columns(source)
    if isinstance(source, Tensor) and source.ndim:  # inputs alone, for models that describe their inputs
        source = (source,)
    if isinstance(source, (tuple, list)) and source and all(isinstance(t, Tensor) for t in source):
        lengths = [t.shape[0] if t.ndim else 0 for t in source]
        if len(set(lengths)) > 1:
            raise DataError(f"expected tensors of equal length, received {lengths}")
        source = TensorDataset(*source)
    if isinstance(source, IterableDataset) or not (isinstance(source, Dataset) and isinstance(source, Sized)):
        return None
    if not len(source):
        raise DataError("expected data, received an empty data set")
    return DataLoader(source, batch_size=batch_size, shuffle=True)


def _length(loader: DataLoader[Any]) -> int | None:
    """The size of the data set, or of the subset that the loader's sampler draws from."""
    try:
        if isinstance(loader.sampler, SubsetRandomSampler):
            return len(loader.sampler)
        number = len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return None
    if number < 1:
        raise DataError("expected data, received an empty data set")
    return number


def _ownable(loader: DataLoader[Any]) -> bool:
    """Whether the loader only shuffles or keeps the order, so that `Order` can replace its sampler."""
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or type(loader.batch_sampler) is not BatchSampler:
        return False
    if loader.batch_size is None:  # the batch sampler was given, with a sampler of its own that is not the loader's
        return False
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) in (SequentialSampler, DistributedSampler)
