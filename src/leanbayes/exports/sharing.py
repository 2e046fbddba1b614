"""Graphs in which every value stands once: constants are computed, and what samples have in common is shared."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

Key = tuple[Any, ...]


class Shared:
    """A functional graph, rebuilt: constants are folded, equal operations on equal values are one node.

    A pass of a model for each of several samples, one after the other, becomes what precedes their first random layer
    once, and the rest for each of them. Weights that depend on noise which is a constant become constants themselves,
    equal ones one. Random operations are left as they are: two of them are two draws.

    program: of one pass or several, without in-place operations (`ExportedProgram.run_decompositions({})`).

    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         scale = torch.tensor(2.0) + 1
    ...         return x.exp() * scale + x.exp()
    >>> program = torch.export.export(Twice(), (torch.ones(2),), strict=False).run_decompositions({})
    >>> [node.name for node in Shared(program).module.graph.nodes]
    ['x', 'exp', 'constant_0', 'mul', 'add_1', 'output']
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.made: dict[Key, Any] = {}
        self.attributes: dict[Key, fx.Node] = {}
        self.values: dict[fx.Node, Any] = {}
        inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        stored = {**program.state_dict, **program.constants}
        self.random = 0
        for node in program.graph_module.graph.nodes:
            if node.op == "placeholder":
                spec = inputs[node.name]
                user = spec.kind == InputKind.USER_INPUT
                self.values[node] = self.graph.placeholder(node.name) if user else _Constant(stored[spec.target])
            elif node.op == "call_function":
                self.values[node] = self._called(node)
            elif node.op == "output":
                self.graph.output(fx.map_arg(node.args[0], lambda n: self._node(self.values[n])))
            else:
                raise NotImplementedError(f"{node.op} {node.target}")
        self.graph.eliminate_dead_code()
        self.module = fx.GraphModule(self.root, self.graph)

    @property
    def constants(self) -> int:
        """Bytes of all constants."""
        return sum(t.numel() * t.element_size() for t in self.module.buffers())

    def _called(self, node: fx.Node) -> Any:
        """A node's value: a constant, one that was computed before, or a new node."""
        args, kwargs = (fx.map_arg(part, lambda n: self.values[n]) for part in (node.args, node.kwargs))
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if is_random(node):
            self.random += 1
            return self._copied(node)
        key = (node.target, structure, *((type(leaf), leaf) for leaf in leaves))
        if key not in self.made:
            if any(isinstance(leaf, fx.Node) for leaf in leaves):
                self.made[key] = self._copied(node)
            else:
                args, kwargs = pytree.tree_map(lambda x: x.value if isinstance(x, _Constant) else x, (args, kwargs))
                found = node.target(*args, **kwargs)  # type: ignore[operator]
                self.made[key] = pytree.tree_map(lambda x: _Constant(x) if isinstance(x, Tensor) else x, found)
        return self.made[key]

    def _copied(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node, lambda n: self._node(self.values[n]))
        if "generator" in copy.kwargs and copy.kwargs["generator"] is None:  # runtimes know the overloads without
            overload = copy.target._overloadname.replace("generator", "").rstrip("_") or "default"  # type: ignore[union-attr]
            copy.target = getattr(copy.target.overloadpacket, overload)  # type: ignore[union-attr]
            copy.kwargs = {name: value for name, value in copy.kwargs.items() if name != "generator"}
        return copy

    def _node(self, value: Any) -> Any:
        """A value as an argument of a node: constant tensors become buffers, equal ones one."""
        if not isinstance(value, _Constant):
            return value
        if value.key not in self.attributes:
            name = f"constant_{len(self.attributes)}"
            self.root.register_buffer(name, value.value.detach().clone(memory_format=torch.contiguous_format))
            self.attributes[value.key] = self.graph.get_attr(name)
        return self.attributes[value.key]


class _Constant:
    """A tensor that does not depend on the inputs; equal to another with the same numbers."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        self.key: Key = (value.dtype, value.shape, hashlib.sha256(memoryview(numbers)).digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def is_random(node: fx.Node) -> bool:
    """Whether a node of a graph draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
