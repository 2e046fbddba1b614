"""What the tests of saved models share."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes import container
from leanbayes.convert import record
from leanbayes.errors import ArtifactError


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 3)
        self.register_buffer("scratch", torch.randn(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


class Tied(nn.Module):
    """Two modules that share a parameter, and one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.again = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.b(self.a(x).relu()))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


INPUTS = {ConvNet: (5, 2, 4, 4), mlp: (5, 4), Tied: (5, 4)}


def stir(model: nn.Module) -> None:
    """Values that no initialisation gives."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.1)


def answer(model: nn.Module, x: Tensor) -> Tensor:
    return lb.predict(model, x, samples=3, seed=7, task="classification").probs


def snapshot(model: nn.Module) -> tuple[object, ...]:
    """Everything a failed load could have changed: structure, identity, values, record, random state."""
    tensors = {n: (id(t), t._version, t.detach().clone()) for n, t in model.state_dict(keep_vars=True).items()}
    modules = [(n, id(m), m.training, sorted(vars(m)), sorted(m._buffers)) for n, m in model.named_modules()]
    return modules, copy.copy(record.get(model)), tensors, torch.get_rng_state()


def same(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    tensors, others = before[2], after[2]
    assert isinstance(tensors, dict)
    assert isinstance(others, dict)
    return (
        before[:2] == after[:2]
        and tensors.keys() == others.keys()
        and all(t[:2] == others[n][:2] and torch.equal(t[2], others[n][2]) for n, t in tensors.items())
        and torch.equal(before[3], after[3])  # type: ignore[arg-type]
    )


def refused(path: object, model: nn.Module, match: str | None = None) -> None:
    before = snapshot(model)
    with pytest.raises(ArtifactError, match=match):
        lb.load(path, into=model)  # type: ignore[arg-type]
    assert same(before, snapshot(model))


def rewritten(path: Path, target: Path, **changes: object) -> Path:
    """A file with another document and a digest that is right for it."""
    tensors, document = container.read(path)
    target.write_bytes(container.pack(tensors, {**document, "digest": "0" * 64, **changes}))
    return target
