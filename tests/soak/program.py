"""A network as code: modules, hooks and the statements of forward(); it can be built, printed and made smaller."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from . import helpers


@dataclass(frozen=True)
class Program:
    """Everything that decides a case but the numbers, which follow from `seed`.

    modules: (name, expression) of every submodule. hooks: statements about `net`, run after the conversion to sparse
    layers. body: groups of statements of forward(), each kept or removed as a whole. dense: names of the modules that
    are not converted. calls: shapes of the arguments (image, table) of one call after the other.
    """

    seed: int
    modules: tuple[tuple[str, str], ...] = ()
    hooks: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    calls: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    dense: tuple[str, ...] = ()
    method: str = "SparseSubspace"
    training: bool = True
    grad: str = "enable_grad"
    channels_last: bool = False

    @property
    def forward(self) -> str:
        """The code of forward()."""
        lines = [line for group in self.body for line in group.split("; ")]
        lines.append(f"return ({', '.join(self.returned)},)")
        return "\n".join(["def forward(self, x, t):", *(f"    {line}" for line in lines)])

    def build(self) -> nn.Module:
        """The network with ordinary layers and without hooks; weights follow from the seed."""
        torch.manual_seed(self.seed)
        net = _class(self.forward)()
        for name, expression in self.modules:
            setattr(net, name, eval(expression, vars(helpers)))
        return net

    def hook(self, net: nn.Module) -> None:
        """Register the hooks."""
        for statement in self.hooks:
            exec(statement, vars(helpers) | {"net": net})

    def arguments(self, call: int) -> list[torch.Tensor]:
        """The inputs of a call: leaves with gradients, random by the seed."""
        generator = torch.Generator().manual_seed(self.seed + call)
        image, table = (torch.randn(shape, generator=generator) for shape in self.calls[call])
        if self.channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        return [t.requires_grad_(self.grad == "enable_grad") for t in (image, table)]

    def smaller(self) -> Iterator[Program]:
        """Programs with one piece less; many of them do not run."""
        for i in range(len(self.calls) - 1, -1, -1):
            if len(self.calls) > 1:
                yield replace(self, calls=self.calls[:i] + self.calls[i + 1 :])
        for i in range(len(self.hooks)):
            yield replace(self, hooks=self.hooks[:i] + self.hooks[i + 1 :])
        for name in self.returned if len(self.returned) > 1 else ():
            yield replace(self, returned=tuple(other for other in self.returned if other != name))
        for i in range(len(self.body) - 1, -1, -1):
            yield self._without(i)
            made = re.findall(r"\bh\d+(?= = )", self.body[i])
            for old in dict.fromkeys(re.findall(r"\b(?:h\d+|x|t)\b", self.body[i])):
                if made and old != made[-1]:  # what came out of it is replaced by what went in
                    yield self._without(i, made[-1], old)

    def _without(self, i: int, new: str = "", old: str = "") -> Program:
        """Without a group of statements, the variable `new` that it made replaced by `old`."""
        after = self.body[i + 1 :]
        returned = self.returned
        if new:
            after = tuple(re.sub(rf"\b{new}\b", old, group) for group in after)
            returned = tuple(dict.fromkeys(old if name == new else name for name in returned))
        body = self.body[:i] + after
        modules = tuple((n, e) for n, e in self.modules if re.search(rf"\bself\.{n}\b", "\n".join(body)))
        names = {name for name, _ in modules}
        hooks = tuple(h for h in self.hooks if h.split(".")[1] in names)
        dense = tuple(name for name in self.dense if name in names)
        return replace(self, modules=modules, hooks=hooks, body=body, returned=returned, dense=dense)

    def __str__(self) -> str:
        modules = "\n".join(f"        self.{name} = {expression}" for name, expression in self.modules)
        forward = "\n".join(f"    {line}" for line in self.forward.splitlines())
        hooks = "".join(f"\n{statement}" for statement in self.hooks)
        dense = ", ".join(self.dense) or "none"
        return (
            "from tests.soak.helpers import *\n\n\nclass Net(Network):\n    def __init__(self):\n"
            f"        super().__init__()\n{modules}\n\n{forward}\n\n\n"
            f"# seed {self.seed}; {self.method}, layers left dense: {dense}; train({self.training}), {self.grad}, "
            f"channels_last: {self.channels_last}\n# shapes of (x, t) in each call: {list(self.calls)}\n"
            f"net = Net(){hooks}"
        )


@functools.lru_cache(64)
def _class(forward: str) -> Any:
    space: dict[str, Any] = {}
    exec(forward, vars(helpers), space)
    return type("Net", (helpers.Network,), space)
