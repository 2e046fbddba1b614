"""Small networks with every way in which channels meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes import models


class Net(nn.Module):
    """Modules by name and a forward, in one expression."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        """What it was given."""
        return self.run(self, x)


def conv(i: int, o: int, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, padding=k // 2, **options)


def _residual(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = m.b(F.relu(m.bn(m.a(F.relu(x)))))
    y += x
    return m.head(F.adaptive_avg_pool2d(torch.relu_(y), 1).flatten(1))


def _inverted_residual(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = F.relu6(m.bn1(m.expand(x)))
    y = F.hardswish(m.bn2(m.depthwise(y)))
    return m.head(torch.add(x, m.project(y)).mean((2, 3)))


def _dense(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    a = m.a(F.relu(m.bn_a(x)))
    b = m.b(F.relu(m.bn_b(torch.cat([x, a], 1))))
    return m.head(F.relu(m.bn(torch.cat((x, a, b), dim=1))).mean(dim=[-1, -2]))


def _unet(m: Any, x: Tensor) -> Tensor:
    a = F.relu(m.down1(x))
    b = F.relu(m.down2(F.max_pool2d(a, 2)))
    c = F.relu(m.bottom(F.avg_pool2d(b, 2)))
    u = m.up1(torch.cat([m.lift(c), b], dim=-3)).relu()
    u = F.interpolate(u, size=a.shape[2:], mode="bilinear")
    return m.head(torch.cat([u, a, x], 1))


def _squeeze_excite(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    b, c, _, _ = x.size()
    gate = m.up(F.relu(m.down(m.pool(x).view(b, c)))).sigmoid().view(b, c, 1, 1)
    return m.head((x * gate.expand_as(x)).flatten(2).mean(-1))


def _conv_gate(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    gate = torch.sigmoid(m.up(F.silu(m.down(x.mean((2, 3), keepdim=True)))))
    return m.head((x * gate).amax((2, 3)))


def _resnext(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = F.relu(m.bn(m.grouped(F.relu(m.reduce(x)))))
    return m.head((m.grow(y) + x).mean((2, 3)))


def _cat_plus(m: Any, x: Tensor) -> Tensor:
    return m.head(F.relu(torch.cat([m.a(x), m.b(x)], 1) + m.c(x)).mean((2, 3)))


def _crossed(m: Any, x: Tensor) -> Tensor:
    a, b = m.a(x), m.b(x)
    return m.head((torch.cat([a, b], 1) + torch.cat([b, a], 1)).mean((2, 3)))


def _recurrent(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    for _ in range(2):
        x = torch.tanh(m.norm(m.step(x)))
    return m.head(x.mean((2, 3)))


def _convnext(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = m.norm(m.depthwise(x).permute(0, 2, 3, 1))
    y = m.shrink(F.gelu(m.grow(y))).permute(0, 3, 1, 2)
    return m.head((x + y * m.scale).mean((-2, -1)))


def _gates(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y = y * m.gate(y).sigmoid()  # one map for all channels
    return m.head(y[:, :, 0, 1:].unsqueeze(-1).squeeze(-1).transpose(1, 2))


def _transformer(m: Any, x: Tensor) -> Tensor:
    x = m.embed(x)
    x = x + m.attention(x, x, x)[0]
    return m.head((x + m.shrink(F.gelu(m.grow(m.norm(x))))).mean(1))


def _convnext_net() -> nn.Module:
    net = Net(
        _convnext,
        stem=conv(3, 4, 1),
        depthwise=conv(4, 4, groups=4),
        norm=nn.LayerNorm(4),
        grow=nn.Linear(4, 8),
        shrink=nn.Linear(8, 4),
        head=nn.Linear(4, 2),
    )
    net.scale = nn.Parameter(torch.ones(1, 4, 1, 1))
    return net


IMAGE, VECTOR = (2, 3, 8, 8), (4, 6)
# name: (network, input shape, names of the free groups)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "plain": (
        lambda: nn.Sequential(
            *(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(), conv(4, 6), nn.PReLU(6)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)),
        ),
        *(IMAGE, ["0", "5"]),
    ),
    "vgg": (
        lambda: nn.Sequential(
            *(conv(3, 4), nn.ReLU(), nn.MaxPool2d(2), conv(4, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(24, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)),
        ),
        *(IMAGE, ["0", "3", "7"]),
    ),
    "mlp": (lambda: models.build("mlp", in_features=6, hidden=(8, 4), out_features=2), VECTOR, ["1", "3"]),
    "lenet5": (lambda: models.build("lenet5", batch_norm=True), (2, 1, 28, 28), ["conv1", "conv2", "dense1"]),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 2)),
        *(VECTOR, ["3"]),
    ),
    "residual": (
        lambda: Net(_residual, stem=conv(3, 4), a=conv(4, 6), bn=nn.BatchNorm2d(6), b=conv(6, 4), head=nn.Linear(4, 2)),
        *(IMAGE, ["stem", "a"]),
    ),
    "inverted residual": (
        lambda: Net(
            _inverted_residual,
            stem=conv(3, 4),
            expand=conv(4, 8, 1),
            bn1=nn.BatchNorm2d(8),
            depthwise=conv(8, 8, groups=8),
            bn2=nn.BatchNorm2d(8),
            project=conv(8, 4, 1),
            head=nn.Linear(4, 2),
        ),
        *(IMAGE, ["stem", "expand"]),
    ),
    "depthwise multiplier": (
        lambda: nn.Sequential(
            *(conv(3, 4), conv(4, 8, groups=4), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 5, 1), nn.Flatten()),
            nn.Linear(5 * 64, 2),
        ),
        *(IMAGE, ["0", "4"]),
    ),
    "dense": (
        lambda: Net(
            _dense,
            stem=conv(3, 4),
            a=conv(4, 2),
            b=conv(6, 2),
            bn_a=nn.BatchNorm2d(4),
            bn_b=nn.BatchNorm2d(6),
            bn=nn.BatchNorm2d(8),
            head=nn.Linear(8, 2),
        ),
        *(IMAGE, ["stem", "a", "b"]),
    ),
    "u-net": (
        lambda: Net(
            _unet,
            down1=conv(3, 4),
            down2=conv(4, 6),
            bottom=conv(6, 8),
            lift=nn.ConvTranspose2d(8, 6, 2, stride=2),
            up1=conv(12, 4),
            head=conv(11, 2, 1),
        ),
        *(IMAGE, ["down1", "down2", "bottom", "lift", "up1"]),
    ),
    "squeeze-excite": (
        lambda: Net(
            _squeeze_excite,
            stem=conv(3, 8),
            pool=nn.AdaptiveAvgPool2d(1),
            down=nn.Linear(8, 4),
            up=nn.Linear(4, 8),
            head=nn.Linear(8, 2),
        ),
        *(IMAGE, ["stem", "down"]),
    ),
    "convolutional gate": (
        lambda: Net(_conv_gate, stem=conv(3, 8), down=conv(8, 4, 1), up=conv(4, 8, 1), head=nn.Linear(8, 2)),
        *(IMAGE, ["stem", "down"]),
    ),
    "grouped": (
        lambda: Net(
            _resnext,
            stem=conv(3, 6),
            reduce=conv(6, 8, 1),
            grouped=conv(8, 12, groups=2),
            bn=nn.BatchNorm2d(12),
            grow=conv(12, 6, 1),
            head=nn.Linear(6, 2),
        ),
        *(IMAGE, ["stem", "reduce", "grouped"]),
    ),
    "group norm": (
        lambda: nn.Sequential(
            *(
                conv(3, 8),
                nn.GroupNorm(4, 8),
                nn.SiLU(),
                conv(8, 6),
                nn.GroupNorm(6, 6),
                conv(6, 4),
                nn.GroupNorm(1, 4),
            ),
            *(nn.Flatten(), nn.Linear(256, 2)),
        ),
        *(IMAGE, ["0", "3"]),
    ),
    "decoder": (
        lambda: nn.Sequential(
            *(nn.Linear(6, 8), nn.ReLU(), nn.Unflatten(1, (8, 1, 1)), nn.ConvTranspose2d(8, 6, 4), nn.BatchNorm2d(6)),
            *(nn.ReLU(), nn.ConvTranspose2d(6, 6, 4, stride=2, groups=6), nn.ConvTranspose2d(6, 1, 3)),
        ),
        *(VECTOR, ["3"]),
    ),
    "sum with a concatenation": (
        lambda: Net(_cat_plus, a=conv(3, 4), b=conv(3, 2), c=conv(3, 6), head=nn.Linear(6, 2)),
        *(IMAGE, ["a", "b"]),
    ),
    "crossed sums": (
        lambda: Net(_crossed, a=conv(3, 4), b=conv(3, 2), head=nn.Linear(6, 2)),
        *(IMAGE, ["a[0:2]"]),
    ),
    "one module twice": (
        lambda: Net(
            _recurrent, stem=conv(3, 4), step=conv(4, 4), norm=nn.InstanceNorm2d(4, affine=True), head=nn.Linear(4, 2)
        ),
        *(IMAGE, ["stem"]),
    ),
    "convnext": (_convnext_net, IMAGE, ["grow"]),
    "indexing": (
        lambda: Net(_gates, a=conv(3, 4), gate=conv(4, 1), head=nn.Linear(4, 2)),
        *(IMAGE, ["a"]),
    ),
    "one dimension": (
        lambda: nn.Sequential(
            *(
                nn.Conv1d(6, 4, 3),
                nn.BatchNorm1d(4),
                nn.ReflectionPad1d(1),
                nn.Conv1d(4, 4, 3),
                nn.Upsample(scale_factor=2),
            ),
            *(nn.Flatten(), nn.Linear(64, 2)),
        ),
        *((2, 6, 10), ["0", "3"]),
    ),
    "transformer": (
        lambda: Net(
            _transformer,
            embed=nn.Linear(6, 8),
            attention=nn.MultiheadAttention(8, 2, batch_first=True),
            norm=nn.LayerNorm(8),
            grow=nn.Linear(8, 16),
            shrink=nn.Linear(16, 8),
            head=nn.Linear(8, 2),
        ),
        *((2, 5, 6), ["grow"]),
    ),
}


class RandomNet(nn.Module):
    """Runs a program: a list of (operation, which earlier tensors, options)."""

    def __init__(self, program: list[tuple[str, int, int, int]]) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleDict()
        widths = [3]
        for i, (op, a, b, size) in enumerate(program):
            n, other = widths[a % len(widths)], widths[b % len(widths)]
            layer: nn.Module | None = None
            if op == "conv" or (op == "group" and n % 2):
                layer, n = conv(n, 2 * size), 2 * size
            elif op == "add" and n != other:
                layer, n = conv(n, other), other
            elif op == "group":
                layer, n = conv(n, 4 * size, groups=2), 4 * size
            elif op == "depth":
                layer, n = conv(n, n * (1 + size % 2), groups=n), n * (1 + size % 2)
            elif op == "norm":
                layer = nn.BatchNorm2d(n) if size % 2 else nn.GroupNorm(2 if n % 2 == 0 else 1, n)
            elif op == "gate":
                layer = nn.Sequential(
                    nn.AdaptiveAvgPool2d(1), conv(n, size, 1), nn.ReLU(), conv(size, n, 1), nn.Sigmoid()
                )
            elif op == "cat":
                n = n + other
            if layer is not None:
                self.layers[str(i)] = layer
            widths.append(n)
        self.head = nn.Linear(widths[-1] * 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The program, then a Linear on everything."""
        values = [x]
        for i, (op, a, b, _) in enumerate(self.program):
            x, y = values[a % len(values)], values[b % len(values)]
            z = self.layers[str(i)](x) if str(i) in self.layers else x
            if op == "cat":
                z = torch.cat([x, y], 1)
            elif op in ("gate", "add"):
                z = z * x if op == "gate" else z + y
            values.append(F.elu(z) if op == "elu" else z)
        return self.head(torch.flatten(values[-1], 1))
