"""Random networks with sparse layers: the compiled path must say what the dense path says.

A seed makes a network, statement by statement; each is tried on the network with ordinary layers first, so that nearly
all of them run. The last may be one that does not, and the network may be called with images of another size: then
both paths must refuse.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from dataclasses import replace

import torch

from . import compare, noise, operations
from .outcome import Outcome
from .program import Program

CASES = 3000
LOCAL = 25
"""Every so many cases, local noise is compared in distribution too."""
LAYERS = ("nn.Conv2d", "nn.Linear")


def generate(seed: int) -> Program:
    """The network of a seed."""
    rng = random.Random(seed)
    batch, side = rng.choice([1, 2, 3, 5, 15, 16, 17, 33, 40]), rng.choice([4, 5, 6, 8])
    image = (batch, rng.choice([1, 2, 3, 4]), side, rng.choice([side, side + 1]))
    program = Program(
        seed,
        calls=((image, (batch, rng.choice([3, 8, 17]))),),
        method=rng.choice(["SparseSubspace"] * 4 + ["Rigl"]),
        training=rng.random() < 0.6,
        grad=rng.choice(["enable_grad"] * 8 + ["no_grad", "inference_mode"]),
        channels_last=rng.random() < 0.2,
    )
    shapes: dict[str, tuple[int, ...]] = {"x": image, "t": program.calls[0][1]}
    layers, length = rng.randint(1, 5), 2 + min(int(rng.expovariate(0.3)), 8)
    for step in range(40):
        if len(program.body) == length:
            break
        count = len([e for _, e in program.modules if e.startswith(LAYERS)])
        wanted = count == 0 or (count < layers and rng.random() < 0.35)
        candidate = _longer(program, shapes, rng, step, "layer" if wanted else rng.choice([*operations.BY_KIND]))
        if candidate is not None and (found := attempt(candidate)) is not None:
            program, shapes = candidate, found
    program = _with_hooks(program, rng)
    if rng.random() < 0.1 and (wrong := _longer(program, shapes, rng, 90, "wrong")) is not None:
        program = wrong
    elif len(names := _variables(program)) > 1:  # the last, and some of the others
        program = replace(program, returned=(*(n for n in names[:-1] if rng.random() < 0.4), names[-1]))
    sparse = [name for name, expression in program.modules if expression.startswith(LAYERS)]
    if rng.random() < 0.2 and len(sparse) > 1:
        program = replace(program, dense=(rng.choice(sparse),))
    (image, table), other = program.calls[0], rng.choice([1, 4, 19, 32])
    if rng.random() < 0.6:
        size = (other, image[1], *(n + rng.choice([0, 0, 1, 4, 24]) for n in image[2:]))
        program = replace(program, calls=(*program.calls, (size, (other, table[1]))))
    return program


def attempt(program: Program) -> dict[str, tuple[int, ...]] | None:
    """The shapes of all values of a network with ordinary layers; None where it does not run, forward and backward."""
    try:
        net = program.build()
    except (ValueError, RuntimeError, TypeError, ZeroDivisionError):
        return None
    program.hook(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = compare.run(net, program, 0)
    if "error" in record:
        return None
    outputs = {name: record[f"output {name}"] for name in program.returned}
    if any(t.numel() > 20_000 or not t.isfinite().all() or t.abs().max() > 1e3 for t in outputs.values() if t.numel()):
        return None
    first = dict(zip(("x", "t"), program.calls[0], strict=True))
    return first | {name: tuple(t.shape) for name, t in outputs.items() if t.numel()}


def judge(program: Program) -> Outcome:
    """Compare the two paths on one network."""
    compare.count_kernel_calls()
    before = compare.kernel_calls
    mode = random.Random(program.seed).choice(["mean", "weight"])
    found = compare.both(program, mode)
    differences = [compare.difference(*records) for records in found]
    failures = [f"{d} (call {i}, {mode})" for i, d in enumerate(differences, 1) if d not in (None, "refused")]
    if not failures and program.seed % LOCAL == 0 and (found_by_draws := noise.difference(program)) is not None:
        failures = [found_by_draws]
    notes = {
        "kernels ran": compare.kernel_calls > before,
        "refused": "refused" in differences,
        "errors": any("error" in dense for _, dense, _ in found),
    }
    return Outcome(failures[0] if failures else None, tuple(note for note, holds in notes.items() if holds))


def case(seed: int) -> Outcome:
    """Generate a network and compare the two paths."""
    torch.set_num_threads(1)
    return judge(generate(seed))


def show(seed: int, outcome: Outcome) -> str:
    """The network of a seed as code; where it fails, the smallest one that fails in the same way."""
    from .shrink import shrunk

    program = generate(seed)
    return str(program if outcome.failure is None else shrunk(program, outcome.kind))


def weakness(total: int, notes: Counter[str]) -> str | None:
    """Why the comparison would mean little, if so: kernels hardly ran, or too much was refused."""
    if notes["kernels ran"] < 0.8 * total:
        return f"kernels ran in {notes['kernels ran']} of {total} cases only"
    if notes["refused"] > 0.05 * total:
        return f"the compiled path refused {notes['refused']} of {total} valid networks"
    return None


def _longer(
    program: Program, shapes: dict[str, tuple[int, ...]], rng: random.Random, step: int, kind: str
) -> Program | None:
    """The program with one more group of statements, drawn from a kind; None where none fits."""
    names = list(shapes)
    h = rng.choices(names, [0.2, 0.2, *range(1, len(names) - 1)])[0]  # later values more often
    if kind == "layer" and names == ["x", "t"]:
        h = rng.choice(["x", "x", "t"])
    shape = shapes[h]
    alike = [name for name in names if shapes[name] == shape]
    templates = operations.BY_KIND.get(kind, operations.WRONG)
    if kind == "layer":
        templates = operations.LAYERS.get(len(shape), [])
        usable = [n for n, e in program.modules if e.startswith("nn.Conv2d" if len(shape) == 4 else "nn.Linear")]
        templates = templates + [f"{{o}} = self.{name}({{h}})" for name in usable]
    if not templates or len(shape) < 2:
        return None
    g = rng.choice(alike if rng.random() < 0.6 else names)
    fields = dict(zip("CHW", [*shape[1:], 1, 1, 1], strict=False)) | {
        "h": h, "g": g, "o": f"h{2 * step + 1}", "p": f"h{2 * step + 2}",
        "m": f"m{step}", "k": step, "D": shape[-1], "F": torch.Size(shape[1:]).numel(),
    }  # fmt: skip
    text = _filled(rng.choice(templates), fields, rng)
    module, _, statements = text.rpartition(" :: ")
    modules = program.modules + (((f"m{step}", module),) if module else ())
    longer = replace(program, modules=modules, body=(*program.body, statements))
    return replace(longer, returned=tuple(_variables(longer)))


def _with_hooks(program: Program, rng: random.Random) -> Program:
    for step in range(rng.choice([0, 0, 0, 1, 2]) if program.modules else 0):
        fields = {"m": rng.choice(program.modules)[0], "k": 50 + step}
        hooked = replace(program, hooks=(*program.hooks, _filled(rng.choice(operations.HOOKS), fields, rng)))
        program = hooked if attempt(hooked) is not None else program
    return program


def _filled(template: str, fields: dict[str, object], rng: random.Random) -> str:
    alternatives = re.compile(r"<([^<>]*\|[^<>]*)>")
    while found := alternatives.search(template):
        template = template[: found.start()] + rng.choice(found[1].split("|")) + template[found.end() :]
    return re.sub(r"\{(\w)\}", lambda m: str(fields[m[1]]), template)


def _variables(program: Program) -> list[str]:
    """What the statements assign, in their order."""
    return list(dict.fromkeys(re.findall(r"\bh\d+(?=(?:, h\d+)* = )", "\n".join(program.body))))
