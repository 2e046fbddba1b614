"""The state of every random generator that training may draw from: torch (CPU and device), numpy, python."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""The classes of generators whose state can be saved."""


def state_of(generator: Any) -> Any:
    """The state of a generator of one of these kinds, as plain values and tensors.

    >>> chance = random.Random(0)
    >>> before = state_of(chance)
    >>> first = chance.random()
    >>> set_state(chance, before)
    >>> chance.random() == first
    True
    """
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state().clone()


def set_state(generator: Any, state: Any) -> None:
    """Put a generator into a state of `state_of`."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def capture(device: torch.device | None = None) -> dict[str, Tensor]:
    """The generators' states as tensors, for a checkpoint."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    assert kind == "MT19937"
    version, words, gauss = random.getstate()
    return {
        **capture_torch(device),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
    }


def restore(state: dict[str, Tensor], device: torch.device | None = None) -> None:
    """Put the generators back into a captured state."""
    restore_torch(state, device)
    position, has_gauss, cached = state["numpy_rest"].tolist()
    np.random.set_state(("MT19937", state["numpy"].numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    version, *words = state["python"].tolist()
    random.setstate((version, tuple(words), (state["python_gauss"].tolist() or [None])[0]))


def capture_torch(device: torch.device | None = None) -> dict[str, Tensor]:
    """The states of torch's generators alone, which is fast enough for every step."""
    state = {"cpu": torch.get_rng_state()}
    if (module := _device_module(device)) is not None:
        state["device"] = module.get_rng_state()
    return state


def restore_torch(state: dict[str, Tensor], device: torch.device | None = None) -> None:
    """Put torch's generators back into a captured state."""
    torch.set_rng_state(state["cpu"].cpu())
    if (module := _device_module(device)) is not None and "device" in state:
        module.set_rng_state(state["device"].cpu())


def seed_all(seed: int) -> None:
    """Seed every generator."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Run a block and restore the generators after it.

    >>> with preserved():
    ...     a = torch.rand(3)
    >>> bool((a == torch.rand(3)).all())
    True
    """
    state = capture(device)
    try:
        yield
    finally:
        restore(state, device)


@contextlib.contextmanager
def seeded_host(seed: int) -> Iterator[None]:
    """Run a block, such as a data augmentation, with the generators of the CPU seeded, then restore them."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # not `capture`: this is for every batch
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _device_module(device: torch.device | None) -> Any:
    """torch.cuda, torch.mps, ... for a device that has a generator of its own, else None."""
    if device is None or device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    return module if "get_rng_state" in vars(module) else None
