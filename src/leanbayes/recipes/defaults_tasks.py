"""What a newcomer might bring: small networks of everyday kinds, trained in a plain loop, with data to try them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import load
from ..models import build
from ..models.perceptron import mlp

EPOCHS = 5
SEEDS, SPLITS = 3, 20
"""How many networks of a task, and of a UCI set, which has so many splits: intervals on few test data say little."""


@dataclass(frozen=True)
class Task:
    """Data and a network, both functions of a seed.

    data: returns "train", "val" and "test" as (inputs, targets), and "other", inputs of another domain, where there are
    such. network: makes the network, not trained. pretraining: epochs of the plain loop; 0 is from scratch.
    likelihood: the task of `fit`. epochs: of `fit`. refused: methods that refuse the network, and say why.
    seeds: how many.
    """

    name: str
    data: Callable[[int], dict[str, Any]]
    network: Callable[[], nn.Module]
    pretraining: int
    likelihood: str = "classification"
    epochs: int = EPOCHS
    refused: tuple[str, ...] = ()
    seeds: int = SEEDS

    def from_scratch(self, epochs: int) -> Task:
        """The same without the plain loop, `fit` for more epochs instead."""
        return replace(self, name=f"{self.name}, from scratch", pretraining=0, epochs=epochs, seeds=SEEDS)

    def pretrained(self, seed: int, **options: Any) -> nn.Module:
        """The network after the plain loop: Adam, batches of 128, nothing else; options are not looked at."""
        torch.manual_seed(seed)
        model, (inputs, targets) = self.network(), self.data(seed)["train"]
        loss = F.cross_entropy if self.likelihood == "classification" else F.mse_loss
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        model.train()
        for _ in range(self.pretraining):
            for rows in torch.randperm(len(inputs)).split(128):
                if len(rows) > 1:  # BatchNorm cannot do with one
                    optimizer.zero_grad()
                    loss(model(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
        return model.eval()


class Residual(nn.Module):
    """Two convolutions around which the input is added; norm makes a norm layer for a number of channels."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """The sum, rectified."""
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class SmallCNN(nn.Module):
    """A stem, two residual blocks, dropout and a head, for small images with one channel."""

    def __init__(self, norm: Callable[[int], nn.Module], width: int = 16) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(1, width, 3, padding=1, stride=2, bias=False), norm(width)
        self.block1 = Residual(width, norm)
        self.down, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2, bias=False), norm(2 * width)
        self.block2 = Residual(2 * width, norm)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, 10)."""
        x = self.block1(F.max_pool2d(F.relu(self.norm1(self.stem(x))), 2))
        x = self.block2(F.relu(self.norm2(self.down(x))))
        return self.head(self.dropout(x.mean((2, 3))))  # type: ignore[no-any-return]


class SmallTransformer(nn.Module):
    """One encoder layer over tokens, averaged and read by a linear layer."""

    def __init__(self, tokens: int = 12, length: int = 12, classes: int = 4, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(length, width))
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        return self.head(self.encoder(self.embedding(x) + self.position).mean(1))  # type: ignore[no-any-return]


def images(
    name: str, other: str, tested: int, count: int, seed: int, pool: int = 1, held_out: int = 1000
) -> dict[str, Any]:
    """A part of an image set, averaged over ``pool`` pixels; training and validation images are drawn by the seed."""

    def pooled(pixels: Tensor) -> Tensor:
        return F.avg_pool2d(pixels.float(), pool)

    source = load(name, seed=0)
    strange = load(other, parts="test", normalise=source)
    order = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(100 + seed))
    chosen = {"train": order[:count], "val": order[count : count + held_out]}
    inputs, targets = source.train.tensors
    found: dict[str, Any] = {part: (pooled(inputs[rows]), targets[rows]) for part, rows in chosen.items()}
    test_inputs, test_targets = source.test.tensors
    found["test"] = pooled(test_inputs[:tested]), test_targets[:tested]
    found["other"] = pooled(strange.test.tensors[0][: tested // 2])
    return found


def table(name: str, seed: int) -> dict[str, Any]:
    """The digits, or a set of scikit-learn, its columns standardised; the seed says what is tested and chosen by."""
    if name == "digits":
        source = load("digits", seed=seed, val_fraction=0.2)
        return {part: (data.tensors[0].flatten(1), data.tensors[1]) for part, data in source.parts.items()}
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    inputs, targets = torch.as_tensor(x).float(), torch.as_tensor(y).long()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    first, second = int(0.6 * len(order)), int(0.75 * len(order))
    parts = {"train": order[:first], "val": order[first:second], "test": order[second:]}
    shift, scale = _scaling(inputs[parts["train"]])
    return {part: ((inputs[rows] - shift) / scale, targets[rows]) for part, rows in parts.items()}


def uci(name: str, seed: int) -> dict[str, Any]:
    """A published split of a UCI set, a sixth of its training part held out; inputs and targets standardised."""
    source = load(f"uci/{name}", split=seed, seed=seed, val_fraction=1 / 6, normalise=False)
    raw: dict[str, Any] = {part: data.tensors for part, data in source.parts.items()}
    (x_shift, x_scale), (y_shift, y_scale) = (_scaling(part) for part in raw["train"])
    return {part: ((x - x_shift) / x_scale, (y - y_shift) / y_scale) for part, (x, y) in raw.items()}


def tokens(count: int, tested: int, seed: int) -> dict[str, Any]:
    """Twelve tokens; the class is that of the token behind the only 0, and one label in ten is drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    total = count + count // 4 + tested
    inputs = torch.randint(1, 12, (total, 12), generator=generator)
    at = torch.randint(0, 11, (total,), generator=generator)
    inputs[torch.arange(total), at] = 0
    targets = inputs[torch.arange(total), at + 1] % 4
    anew = torch.rand(total, generator=generator) < 0.1
    targets[anew] = torch.randint(0, 4, (int(anew.sum()),), generator=generator)
    parts = zip(("train", "val", "test"), torch.arange(total).split([count, count // 4, tested]), strict=True)
    return {part: (inputs[rows], targets[rows]) for part, rows in parts}


def group_norm(width: int) -> nn.Module:
    """GroupNorm with four channels a group."""
    return nn.GroupNorm(width // 4, width)


def tasks(preset: str) -> list[Task]:
    """The tasks of a preset; "paper" stands for more images."""
    if preset == "smoke":
        return [Task("digits, MLP", partial(table, "digits"), partial(mlp, 64, (16,), 10), 2)]
    small, large, tested = (10_000, 50_000, 10_000) if preset == "paper" else (3000, 10_000, 2000)
    coloured = 5000 if preset == "cpu" else 20_000  # fewer teach the ResNet nothing: 22 % with 2,000 of 16x16 pixels
    fashion = partial(images, "fashion-mnist", "mnist", tested)
    tables = [
        Task(f"{name}, MLP", partial(table, name), partial(mlp, features, (50, 50), classes), 60)
        for name, features, classes in (("digits", 64, 10), ("breast_cancer", 30, 2), ("wine", 13, 3))
    ]
    regressions = [
        Task(f"UCI {name}, MLP", partial(uci, name), partial(mlp, features, (50,), 1), 300, "regression", seeds=SPLITS)
        for name, features in (("boston", 13), ("concrete", 8), ("energy", 8), ("yacht", 6))
    ]
    cnn, batch_norm = partial(SmallCNN, group_norm), partial(SmallCNN, nn.BatchNorm2d)
    resnet = partial(build, "resnet18_cifar", width=8)
    cifar = partial(images, "cifar10", "svhn", tested, coloured, pool=2)
    fewer = Task(f"Fashion-MNIST, {small:,} images, BatchNorm", partial(fashion, small), batch_norm, 30)
    return [
        *tables,
        *regressions,
        fewer,
        Task(f"Fashion-MNIST, {large:,} images, BatchNorm", partial(fashion, large), batch_norm, 20),
        Task(f"Fashion-MNIST, {small:,} images, GroupNorm", partial(fashion, small), cnn, 30),
        Task("tokens, transformer", partial(tokens, 4000, tested), SmallTransformer, 35, refused=("Nested",)),
        Task(f"CIFAR-10, {coloured:,} images, ResNet", cifar, resnet, 15),
        tables[0].from_scratch(30),
        regressions[1].from_scratch(60),
        fewer.from_scratch(8),
    ]


def _scaling(values: Tensor) -> tuple[Tensor, Tensor]:
    std = values.std(0)
    return values.mean(0), torch.where(std > 1e-8, std, 1.0)
