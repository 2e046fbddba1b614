"""Training runs of every method, killed at random moments and continued: the end must be the same to the last bit."""

from __future__ import annotations

import functools
import json
import multiprocessing
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  (before processes are forked, so that each need not import it)
import numpy as np
import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

import leanbayes as lb
import leanbayes.training.fit
from leanbayes.training.natural_gradient import NaturalGradientSGD
from tests.fixtures.models import METHODS, data, network

from .forked import forked
from .outcome import Outcome

CASES = 200
EPOCHS, STEPS_AN_EPOCH = 4, 4
STEPS = EPOCHS * STEPS_AN_EPOCH
NAMES = list(METHODS)


class Noisy(Dataset):
    """Random at every turn, from each of the generators that people use."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        jitter = torch.rand(()) + float(np.random.rand()) + random.random()
        return self.x[index] + 0.1 * jitter, self.y[index]


class Shuffled(Sampler):
    """A sampler with a generator of its own, which an epoch leaves in another state."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(16, generator=self.generator).tolist())

    def __len__(self) -> int:
        return 16


class Batches(Sampler):
    """Batches of random data, from generators of numpy and of python."""

    def __init__(self) -> None:
        self.chance, self.rng = random.Random(3), np.random.Generator(np.random.MT19937(4))

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(STEPS_AN_EPOCH):
            yield [self.chance.randrange(16), *map(int, self.rng.integers(16, size=3))]

    def __len__(self) -> int:
        return STEPS_AN_EPOCH


def _schedule(optimizer: Any) -> Any:
    return OneCycleLR(optimizer, 0.02, total_steps=STEPS)


def _weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0, 2.0] * 8, 16, generator=torch.Generator().manual_seed(6))


# a loader, and further options of fit
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "scheduled": (
        lambda: DataLoader(Noisy(), 4, shuffle=True),
        {"scheduler": _schedule, "scheduler_every": "step", "clip": 1.0, "kl_weight": lb.warmup(0, 1, steps=STEPS)},
    ),
    "stopping": (
        lambda: DataLoader(Noisy(), 4, shuffle=True),
        {
            "val": data(),
            "early_stopping": lb.EarlyStopping(patience=9, restore_best=True),
            "optimizer": torch.optim.SGD,
        },
    ),
    "natural gradient": (lambda: DataLoader(Noisy(), 4, shuffle=True), {"optimizer": NaturalGradientSGD}),
    "own sampler": (lambda: DataLoader(Noisy(), 4, sampler=Shuffled()), {}),
    "own batches": (lambda: DataLoader(Noisy(), batch_sampler=Batches()), {"optimizer": torch.optim.RMSprop}),
    "weighted": (
        lambda: DataLoader(Noisy(), 4, sampler=_weighted()),
        {"val": DataLoader(Noisy(), 4, sampler=_weighted())},
    ),
}


class Tell(lb.Callback):
    """Tells the parent how far this process has come."""

    def __init__(self, done: Any) -> None:
        self.done = done

    def before_step(self, state: Any) -> None:
        self.done.value += 1


def train(name: str, kind: str, folder: str, every: int, done: Any) -> dict[str, Any]:
    """Train, or go on; the state of the model and the numbers of every epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = network()
    lb.bayesianize_(model, METHODS[name])
    loader, options = KINDS[kind]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the order of this loader", lb.LeanBayesWarning)
        files = {"checkpoint": f"{folder}/run", "checkpoint_every": every, "log": f"{folder}/log", "resume": True}
        common = {"epochs": EPOCHS, "seed": 7, "lr": 0.01, "val_samples": 2, "progress": False}
        history = lb.fit(model, loader(), **common, **files, callbacks=[Tell(done)], **options)
    state = {k: v.tolist() if isinstance(v, torch.Tensor) else repr(v) for k, v in model.state_dict().items()}
    rows = [{**row, "seconds": 0} for row in history]
    log = [{**json.loads(line), "seconds": 0} for line in Path(folder, "log").read_text().splitlines()]
    return {"state": state, "rows": rows, "log": log, "files": sorted(p.name for p in Path(folder).iterdir())}


@functools.cache
def undisturbed(name: str, kind: str) -> dict[str, Any]:
    """What a run that nobody kills ends with."""
    with tempfile.TemporaryDirectory() as folder:
        return forked(train, name, kind, folder, 1, multiprocessing.Value("i", 0, lock=False))


def case(seed: int) -> Outcome:
    """One run, killed once or twice, against one that is not."""
    chance = random.Random(seed)
    name, kind = NAMES[seed % len(NAMES)], list(KINDS)[seed // len(NAMES) % len(KINDS)]
    expected, notes = undisturbed(name, kind), [kind]
    context = multiprocessing.get_context("fork")
    every = chance.randint(1, 3)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(chance.randint(1, 2)):
            done = context.Value("i", 0, lock=False)
            child = context.Process(target=train, args=(name, kind, folder, every, done))
            steps, delay = chance.randint(0, STEPS - 3), chance.uniform(0, 0.03)
            child.start()
            while done.value < steps and child.is_alive():
                time.sleep(0.0005)
            time.sleep(delay)  # anywhere within a step, within a write, or within the start
            child.kill()
            child.join()
            notes.append("kills" if child.exitcode == -9 else "too late")
        found = forked(train, name, kind, folder, every, context.Value("i", 0, lock=False))
    for part, value in expected.items():
        if found[part] != value:
            return Outcome(f"{part} differ: {name}, {kind}, checkpoint_every={every}", tuple(notes))
    return Outcome(None, tuple(notes))


def show(seed: int, outcome: Outcome) -> str:
    """What the case was."""
    return f"{NAMES[seed % len(NAMES)]}, {list(KINDS)[seed // len(NAMES) % len(KINDS)]}"


def weakness(cases: int, notes: Counter[str]) -> str | None:
    """Where the cases have not tested what they are for."""
    return None if notes["kills"] >= cases else f"only {notes['kills']} runs of {cases} were killed before their end"
