"""Random networks with sparse layers under what torch does to whole functions: second derivatives, `functional_call`,
`vmap`, `torch.func.grad` and `torch.compile`. The compiled path must say what the dense path says, or refuse clearly.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import leanbayes as lb
from leanbayes.layers.sparse import dense_path

from . import compare, graphs
from .outcome import Outcome
from .program import Program

CASES = 600
COMPILED = 50
"""Every so many cases a network is compiled, which takes seconds."""


def _weighed(outputs: tuple[Tensor, ...], seed: int) -> Tensor:
    """A number that depends on all outputs."""
    generator = torch.Generator().manual_seed(seed)
    terms = [(t * torch.randn(t.shape, generator=generator)).sum() for t in outputs if t.is_floating_point()]
    return torch.stack([term.to(torch.float32) for term in terms]).sum()


def second_derivatives(net: nn.Module, program: Program) -> compare.Record:
    """Gradients of a function of the gradients."""
    inputs = program.arguments(0)
    named = dict([*zip(("x", "t"), inputs, strict=True), *net.named_parameters()])
    first = torch.autograd.grad(
        _weighed(net(*inputs), program.seed), list(named.values()), create_graph=True, allow_unused=True
    )
    found = {f"gradient {name}": compare.plain(g) for name, g in zip(named, first, strict=True)}
    again = [g for g in first if g is not None and g.requires_grad]
    if not again:
        return found
    second = torch.autograd.grad(_weighed(tuple(again), program.seed + 1), list(named.values()), allow_unused=True)
    return found | {f"second {name}": compare.plain(g) for name, g in zip(named, second, strict=True)}


def other_parameters(net: nn.Module, program: Program) -> compare.Record:
    """`functional_call` with parameters that are not those of the network, and their gradients."""
    inputs = program.arguments(0)
    given = {name: (1.1 * p.detach()).requires_grad_() for name, p in net.named_parameters()}
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    outputs = functional_call(net, {**given, **buffers}, tuple(inputs))
    _weighed(outputs, program.seed).backward()
    found = {f"output {name}": compare.plain(t) for name, t in zip(program.returned, outputs, strict=True)}
    found |= {f"gradient {name}": compare.plain(p.grad) for name, p in given.items()}
    found |= {f"own gradient {name}": compare.plain(p.grad) for name, p in net.named_parameters()}
    return found | {f"buffer {name}": compare.plain(b) for name, b in buffers.items()}


def mapped(net: nn.Module, program: Program) -> compare.Record:
    """`vmap` over a stack of batches."""
    stacked = [torch.stack([t.detach(), -t.detach()]) for t in program.arguments(0)]
    outputs = vmap(net, randomness="same")(*stacked)
    return {f"output {name}": compare.plain(t) for name, t in zip(program.returned, outputs, strict=True)}


def functional_gradient(net: nn.Module, program: Program) -> compare.Record:
    """`torch.func.grad` of the parameters."""
    inputs = tuple(t.detach() for t in program.arguments(0))
    given = {name: p.detach() for name, p in net.named_parameters()}
    found = grad(lambda p: _weighed(functional_call(net, p, inputs), program.seed))(given)
    return {f"gradient {name}": compare.plain(g) for name, g in found.items()}


def compiled(net: nn.Module, program: Program) -> compare.Record:
    """`torch.compile`, forward and backward; nothing is generated, which would take minutes."""
    torch._dynamo.reset()
    net.compile(backend="aot_eager")
    return compare.run(net, program, 0)


def ordinary(net: nn.Module, program: Program) -> compare.Record:
    """Forward and backward as they are."""
    return compare.run(net, program, 0)


Transform = Callable[[nn.Module, Program], compare.Record]
TRANSFORMS: tuple[Transform, ...] = (
    second_derivatives, other_parameters, mapped, functional_gradient,
)  # fmt: skip


def _without_zeros(record: compare.Record) -> compare.Record:
    """Gradients of nothing but zeros as None: what has no gradient gets one of zeros in a compiled graph."""
    nothing = {
        k for k, v in record.items() if isinstance(v, Tensor) and ("gradient" in k or "second" in k) and not v.any()
    }
    return {name: None if name in nothing else value for name, value in record.items()}


def case(seed: int) -> Outcome:
    """One network under one transform, on both paths."""
    torch.set_num_threads(1)
    compare.count_kernel_calls()
    program = replace(graphs.generate(seed), hooks=(), grad="enable_grad")
    program = replace(program, calls=program.calls[:1])
    transform = compiled if seed % COMPILED == 0 else random.Random(seed).choice(TRANSFORMS)
    if transform is compiled and "register_hook" in str(program):
        # torch.compile gives other gradients where a hook on a tensor is set behind a graph break, on plain layers too
        return Outcome(None, (transform.__name__, "errors"))
    made = compare.sparse(program)
    before = compare.kernel_calls

    def result(transform: Transform, rounding: float = 0.0) -> compare.Record:
        net = copy.deepcopy(made).train(program.training)
        if rounding:
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(1 + rounding * torch.randn(p.shape))
        torch.manual_seed(seed)
        with lb.using(mean_only=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return _without_zeros(transform(net, program))
            except Exception as error:
                return {"error": error}

    ours = result(transform)
    ran = compare.kernel_calls > before
    with dense_path():
        plain = ordinary if transform is compiled else transform
        theirs = result(plain)
        notes = [transform.__name__, *(["kernels ran"] if ran else [])]
        if "error" in theirs:  # torch cannot do it
            return Outcome(None, (*notes, "errors"))
        failure = compare.difference(ours, theirs, lambda: [result(plain, compare.ROUNDING) for _ in range(4)])
    if failure == "refused":
        return Outcome(None, (*notes, "refused"))
    return Outcome(failure and f"{failure} ({transform.__name__})", tuple(notes))


def show(seed: int, outcome: Outcome) -> str:
    """The network of a seed as code."""
    return str(graphs.generate(seed))


def weakness(total: int, notes: Counter[str]) -> str | None:
    """Why the comparison would mean little, if so."""
    if notes["errors"] > 0.7 * total:
        return f"torch itself refused {notes['errors']} of {total} cases"
    return None
