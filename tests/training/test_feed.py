import random
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from leanbayes.errors import DataError
from leanbayes.training import rng
from leanbayes.training.data import feed

X = torch.arange(23)


def indices(source, epoch=0, start=0, **options):
    return [batch[0].tolist() for batch in feed(source, batch_size=4, seed=7, **options).epoch(epoch, start)]


def flat(lists):
    return list(chain.from_iterable(lists))


class Noisy(Dataset):
    """Draws from every host generator."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, torch.rand(()).item(), np.random.rand(), random.random()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(3))


def test_an_epoch_is_a_permutation_of_seed_and_epoch():
    first, again, next_ = indices((X,)), indices((X,)), indices((X,), epoch=1)
    assert sorted(flat(first)) == X.tolist()
    assert first == again != next_
    assert [len(b) for b in first] == [4, 4, 4, 4, 4, 3]
    assert indices((X,), start=4) == first[4:]
    assert indices((X,), start=6) == []


def test_a_tensor_is_inputs_alone():
    """For models that describe their inputs; where targets are needed, the loss says that they are missing."""
    assert indices(X) == indices((X,))


def test_the_loader_keeps_its_options():
    data = TensorDataset(X)
    assert flat(indices(DataLoader(data, batch_size=5))) == X.tolist()  # in order, if it was not shuffled
    assert len(indices(DataLoader(data, batch_size=5, drop_last=True))) == 4
    assert len(indices(DataLoader(data, batch_size=5, drop_last=True), training=False)) == 5  # validation drops nothing
    doubled = DataLoader(data, batch_size=5, collate_fn=lambda rows: [2 * torch.stack([r[0] for r in rows])])
    assert indices(doubled)[0] == [0, 2, 4, 6, 8]


def test_processes_share_the_joined_batches():
    joined = [b[0].tolist() for b in feed((X,), batch_size=8, seed=7).epoch(0)]
    parts = [indices((X,), rank=r, world=2) for r in range(2)]
    for whole, *shares in zip(joined, *parts, strict=True):
        assert len(shares[0]) == len(shares[1])
        assert flat(shares) == whole[: 2 * len(shares[0])]  # at most one datum is left out, in the last batch
    validation = [indices((X,), rank=r, world=3, training=False) for r in range(3)]
    assert sorted(flat(flat(validation))) == X.tolist()


def test_augmentation_depends_on_the_batch_alone():
    def draws(workers, start=0):
        loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)
        return [[t.tolist() for t in batch] for batch in feed(loader, batch_size=1, seed=0).epoch(0, start)]

    alone = draws(0)
    assert alone == draws(2)
    assert alone[1:] == draws(0, start=1)
    assert alone != [[t.tolist() for t in b] for b in feed(Noisy(), batch_size=4, seed=1).epoch(0)]


def test_reading_leaves_the_generators_alone():
    before = rng.capture()
    for source in (Noisy(), Subset(Noisy(), [1, 2]), (X,)):
        list(feed(source, batch_size=4, seed=0).epoch(0))
    after = rng.capture()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_who_owns_the_order():
    data = TensorDataset(X)
    weighted = WeightedRandomSampler([1.0] * 23, 23)
    assert feed(DataLoader(data, sampler=DistributedSampler(data, 2, 0)), batch_size=1, seed=0).owned
    for foreign in (
        DataLoader(data, sampler=weighted),
        DataLoader(data, sampler=SubsetRandomSampler([1, 2])),
        DataLoader(data, batch_size=None),
        DataLoader(Stream()),
        [(X, X)],
    ):
        assert not feed(foreign, batch_size=1, seed=0).owned
    assert len(feed(DataLoader(Stream()), batch_size=1, seed=0)) == 0


@pytest.mark.parametrize(
    "source",
    [
        None,
        3,
        "data",
        {},
        X[0],
        X[:0],
        (b for b in [X]),
        (X, X[:3]),
        TensorDataset(X[:0]),
        (X[:0],),
        DataLoader(TensorDataset(X[:0])),
    ],
)
def test_refused(source):
    with pytest.raises(DataError):
        feed(source, batch_size=4, seed=0)


def test_no_batch_is_refused():
    with pytest.raises(DataError, match="drop_last=True"):
        feed(DataLoader(TensorDataset(X), batch_size=50, drop_last=True), batch_size=1, seed=0)


def test_generators_come_back_exactly():
    random.gauss(0, 1)  # leaves a second draw waiting
    np.random.randn()
    state = rng.capture()

    def draw():
        return random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), torch.randn(3).tolist()

    first = draw()
    rng.restore(state)
    assert draw() == first


def test_a_batch_sampler_that_was_given_is_used():
    sampler = BatchSampler(SubsetRandomSampler([1, 3]), 2, drop_last=False)
    found = feed(DataLoader(TensorDataset(torch.arange(6)), batch_sampler=sampler), batch_size=4, seed=0)
    assert not found.owned
    assert [sorted(x.tolist()) for (x,) in found.epoch(0)] == [[1, 3]]
