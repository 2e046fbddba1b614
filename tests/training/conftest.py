"""One thread: the tests are small, and what is bit-identical is so for one number of threads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch

PRELOAD = [
    "torch",
    "lightning_fabric",
    "leanbayes.training.fit",
    "leanbayes.convert.apply",
    "leanbayes.methods.mean_field",
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def processes() -> Any:
    """Processes that start at once: forked from a server that has imported torch and run nothing yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context
