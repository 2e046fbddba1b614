"""Arguments for random calls: nonsense, values that are nearly right, and data that are nearly data."""

from __future__ import annotations

import decimal
import fractions
import functools
import math
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb

Maker = Callable[[], Any]


@dataclass(frozen=True)
class Target:
    """A function and its parameters. valid: makers of good values. always: those that every call is given."""

    name: str
    function: Callable[..., Any]
    valid: Mapping[str, list[Maker]]
    always: tuple[str, ...] = ()
    weight: float = 1.0
    model: str | None = None
    notes: tuple[str, ...] = field(default=())


def several(*values: Any) -> list[Maker]:
    return [functools.partial(lambda value: value, value) for value in values]


class UserError(Exception):
    """Raised by data and functions of the caller; it may pass through leanbayes."""


class HostileError(Exception):
    """Raised by an object that was only to be looked at; it may not pass through."""


class Hostile:
    """Raises whatever is asked of it."""

    def _refuse(self, *args: Any) -> Any:
        raise HostileError

    __eq__ = __bool__ = __iter__ = __len__ = __index__ = __float__ = __int__ = __repr__ = __str__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __getitem__ = __contains__ = __array__ = _refuse
    __hash__ = object.__hash__


def raising(first: Any = None) -> Any:
    """A generator that fails, at once or after its first batch."""
    if first is not None:
        yield first
    raise UserError


def fails(*args: Any, **kwargs: Any) -> Any:
    """A function that fails."""
    raise UserError


def deleted() -> Path:
    """A file in a folder that is gone."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(folder, "file.json")


HOPELESS: list[Maker] = [object, Hostile, lambda: object, lambda: Ellipsis, lambda: NotImplemented]
"""Nothing can be done with these: a call that returns has not looked at them."""
NUMBERS: list[Maker] = [
    functools.partial(lambda value: value, value)
    for value in (
        0, 1, -1, 2, 3, 0.5, 1.0, -0.5, 1e-300, 1e300, math.nan, math.inf, -math.inf, 2**31, 2**70, -(2**70), 10**400,
        True, False, 1j, "1", "0.5", np.int64(2), np.float32(0.5), np.float64("nan"), np.bool_(True),
        decimal.Decimal("0.5"), fractions.Fraction(1, 3),
    )
]  # fmt: skip
TENSORS: list[Maker] = [
    lambda: torch.tensor(1.0),
    lambda: torch.empty(0),
    lambda: torch.empty(0, 4),
    lambda: torch.zeros(7, 2, 2),
    lambda: torch.zeros(8, 5),
    lambda: torch.zeros(8, 4, dtype=torch.complex64),
    lambda: torch.zeros(8, 4, dtype=torch.bool),
    lambda: torch.zeros(8, 4, dtype=torch.float16),
    lambda: torch.zeros(8, 4, device="meta"),
    lambda: torch.zeros(8, 4).to_sparse(),
    lambda: torch.full((8, 4), math.nan),
    lambda: torch.arange(8),
    lambda: torch.full((8,), 99),
    lambda: torch.full((8,), -3),
    lambda: torch.zeros(8),
    lambda: np.zeros((8, 4)),
    lambda: np.array([None, "a"], dtype=object),
    lambda: np.array(["a", "b"]),
]
OTHERS: list[Maker] = [
    lambda: None, str, bytes, list, tuple, dict, set,
    lambda: "nonsense", lambda: "x" * 10_000, lambda: "\0", lambda: b"bytes", lambda: "classification",
    lambda: [1, "a", None], lambda: (1, 2, 3), lambda: {"a": 1}, lambda: {1: None}, lambda: [[]], lambda: range(3),
    lambda: lambda: 0, lambda: fails, raising, lambda: iter([]), lambda: nn.Linear, lambda: nn.Linear(4, 3),
    lambda: Path("no/such/folder/file"), lambda: "no/such/file", lambda: Path("."),
    lambda: "/proc/version", deleted, lambda: ValueError("x"),
    lb.Normal, lambda: lb.MeanField(), lambda: lb.Classification(), lambda: slice(None), lambda: torch.float32,
    lambda: torch.device("cuda:7"), lambda: random.Random(0), lambda: np.random.default_rng(0),
]  # fmt: skip
NONSENSE = [*HOPELESS, *NUMBERS, *TENSORS, *OTHERS]


def inputs(count: int = 8, features: int = 4) -> torch.Tensor:
    """Inputs of the small networks."""
    return torch.randn(count, features, generator=torch.Generator().manual_seed(1))


def labels(count: int = 8) -> torch.Tensor:
    """Labels of three classes."""
    return torch.arange(count) % 3


def images() -> torch.Tensor:
    """Images with values from 0 to 1."""
    return torch.rand(8, 1, 32, 32, generator=torch.Generator().manual_seed(1))


LABELLED: list[Maker] = [
    lambda: (inputs(), labels()),
    lambda: [(inputs(), labels())],
    lambda: [(inputs(5), labels(5)), (inputs(3), labels(3))],
    lambda: DataLoader(TensorDataset(inputs(), labels()), batch_size=4),
    lambda: TensorDataset(inputs(), labels()),
    lambda: {"input": inputs(), "labels": labels()},
    lambda: (inputs().numpy(), labels().numpy()),
]
NEARLY_DATA: list[Maker] = [
    inputs,
    lambda: (inputs(), labels().float()),
    lambda: (inputs(), labels() + 7),
    lambda: (inputs(), -labels() - 1),
    lambda: (inputs(), labels(3)),
    lambda: (inputs(), labels().unsqueeze(1)),
    lambda: (inputs(8, 5), labels()),
    lambda: (inputs().double(), labels()),
    lambda: (inputs().to("meta"), labels().to("meta")),
    lambda: (inputs() * math.nan, labels()),
    lambda: (inputs().requires_grad_(), labels()),
    lambda: (inputs(), inputs()),
    lambda: (inputs(0), labels(0)),
    lambda: (inputs(1), labels(1)),
    lambda: (inputs(),),
    lambda: [inputs(), inputs()],
    lambda: [(inputs(), labels()), (inputs(8, 5), labels())],
    lambda: [(inputs(), labels()), None],
    lambda: [(inputs(), None)],
    lambda: [(inputs(), "labels")],
    lambda: [((inputs(), inputs()), labels())],
    lambda: [()],
    lambda: [{}],
    lambda: [{"labels": labels()}],
    lambda: [{"wrong": inputs(), "labels": labels()}],
    lambda: {"input": inputs(), "labels": labels(3)},
    lambda: {"input": inputs()},
    lambda: iter([(inputs(), labels())]),
    lambda: raising((inputs(), labels())),
    raising,
    lambda: DataLoader(TensorDataset(inputs(0), labels(0))),
    lambda: DataLoader(TensorDataset(inputs(3), labels(3)), batch_size=4, drop_last=True),
    lambda: DataLoader([1, 2, 3]),
    lambda: DataLoader(["a", "b"]),
    lambda: (inputs().numpy().astype("O"), labels().numpy()),
]
