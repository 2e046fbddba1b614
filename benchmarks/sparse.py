"""What sparse subspace VI saves: training steps, predictions, bytes, the price of a mask update; against dense VI.

Plain network, dense VI (local reparameterisation) and sparse subspace VI at 10 and 5 % take turns in one process, with
the same batch and the same optimiser (SGD with momentum; forward, loss with KL, backward, step): ResNet-18, LeNet-5,
and a small BERT on an eighth of as many sequences of 128 tokens. The stem (of BERT the last layer) stays dense, as
in the paper: in the sparse networks as a sparse layer of density 1. Both dense contenders run in both memory
formats, contiguous and channels last; ratios are to the faster, and those to torch's default are given beside them.
Blocks of a sparse network have a format of their own. Freed memory is kept for all alike.

Beside the times: the bytes of parameters, indices, gradients and optimiser state; and what an update of the masks adds
to a step (how many steps long one with an update is, in the same rounds, the kernels' new plans included; the update
alone is one less), and how many of the weights it brings in are those that dense gradients in single precision choose.
Prediction: 16 samples of a batch of 64 beside a pass of the plain network over it, in turns as well. "paths" says of
each sparse layer whether it computes at the nonzeros alone.

    python benchmarks/sparse.py
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/sparse.py --level 1 \
        --output benchmarks/results/sparse_avx2.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from common import interleaved, parser, publish, result, timing
from leanbayes.cli.memory import keep_freed_memory
from leanbayes.costs import cost, training_bytes
from leanbayes.kernels import library
from leanbayes.methods.sparse import growth
from leanbayes.models import build
from leanbayes.posteriors.sparse import Sparse
from leanbayes.training.callbacks import State, notify

PLAIN, DENSE = "plain network", "dense VI"
LAYOUTS = {"": torch.contiguous_format, ", channels last": torch.channels_last}
DENSITIES = (0.1, 0.05)
SAMPLES, ASKED = 16, 64
NEVER = 10**9
"""An interval without updates."""


@dataclass(frozen=True)
class Problem:
    """A network, the layer that stays dense, and one batch."""

    name: str
    options: dict[str, Any]
    stem: str
    x: Tensor
    y: Tensor
    num_data: int


@dataclass
class Contender:
    """A network in training, with the callbacks of its method."""

    model: nn.Module
    task: Problem
    layout: str
    optimiser: torch.optim.Optimizer = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.model.train()
        self.optimiser = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)
        self.hooks = lb.callbacks(self.model)
        self.state = State(self.model, self.optimiser, total_steps=None)
        notify(self.hooks, "fit_start", self.state)

    def step(self) -> None:
        """Forward, loss, backward, optimiser, and whatever the method does around them."""
        task, state = self.task, self.state
        notify(self.hooks, "before_step", state)
        self.optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(task.x), task.y) + lb.kl_sum(self.model) / task.num_data
        loss.backward()
        notify(self.hooks, "after_backward", state)
        self.optimiser.step()
        state.step += 1
        notify(self.hooks, "after_step", state)


class Block(nn.Module):
    """A layer of a transformer encoder: attention of four heads and two Linear layers, each with norm and sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """(data, tokens, width) to the same."""
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.joint(x).chunk(3, -1))
        x = self.norms[0](x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """A small BERT that classifies: four layers of a width, and the first token's output."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, width)
        self.layers = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Token numbers (data, tokens) to logits."""
        return self.head(self.layers(self.tokens(x))[:, 0])  # type: ignore[no-any-return]


def problems(quick: bool, batch: int) -> list[Problem]:
    """ResNet-18 for CIFAR and LeNet-5; the quick ones are narrow and see small images.

    Not narrower than 16: strided 1 x 1 convolutions of fewer channels than a register has lanes write beyond their
    memory in channels last (oneDNN, issue 6035).
    """
    torch.manual_seed(0)
    options, sides = ({"width": 16}, (8, 16)) if quick else ({}, (32, 28))
    tokens = torch.randint(1000, (batch // 8, 16 if quick else 128))
    bert = Problem("bert", {"layers": 1} if quick else {}, "head", tokens, torch.randint(10, (len(tokens),)), 50_000)
    return [
        Problem(name, more, "conv1", torch.randn(batch, channels, side, side), torch.randint(10, (batch,)), count)
        for name, more, channels, side, count in (
            ("resnet18_cifar", options, 3, sides[0], 50_000),
            ("lenet5", {"image_size": sides[1]}, 1, sides[1], 60_000),
        )
    ] + [bert]


def network(task: Problem, rules: dict[str, Any] | None, layout: torch.memory_format) -> Contender:
    """The network under some rules, from the same weights whatever they are."""
    torch.manual_seed(1)
    made = Bert(**task.options) if task.name == "bert" else build(task.name, **task.options)
    model = made.to(memory_format=layout)  # type: ignore[call-overload]
    if rules is not None:
        left: dict[Any, Any] = {nn.Embedding: None} if isinstance(made, Bert) else {}
        lb.bayesianize_(model, left | rules)  # type: ignore[arg-type]
    return Contender(model, task, str(layout).removeprefix("torch."))


def sparse_rules(task: Problem, density: float, interval: int) -> dict[str, Any]:
    """Sparse subspace VI with a dense stem; its replacement rate stays at 0.3, the most that training ever replaces."""
    steady = {"schedule": "constant", "until": 1.0, "interval": interval}
    return {
        task.stem: lb.SparseSubspace(density=1.0, **steady),  # type: ignore[arg-type]
        "*": lb.SparseSubspace(density=density, **steady),  # type: ignore[arg-type]
    }


def entrants(task: Problem) -> dict[str, Contender]:
    """All that take turns; for every density one that never updates its masks, and one that does at every step."""
    dense = {PLAIN: None, DENSE: {"*": lb.MeanField(random_bias=False)}}
    found = {name + more: network(task, dense[name], layout) for name in dense for more, layout in LAYOUTS.items()}
    for density in DENSITIES:
        for more, interval in (("", NEVER), (", updating", 1)):
            rules = sparse_rules(task, density, interval)
            found[f"sparse {density:.0%}{more}"] = network(task, rules, torch.contiguous_format)
    return found


def measure(task: Problem, repeats: int) -> dict[str, dict[str, Any]]:
    """Times and bytes by contender."""
    found = entrants(task)
    runs: dict[str, Callable[[], None]] = {name: contender.step for name, contender in found.items()}
    seconds = interleaved(runs, repeats)
    plain, dense = (min((name + more for more in LAYOUTS), key=lambda n: min(seconds[n])) for name in (PLAIN, DENSE))
    raw: dict[str, dict[str, Any]] = {}
    for name, contender in found.items():
        bill = cost(contender.model, task.x[:1])
        sizes = training_bytes(contender.model, contender.optimiser)
        least = min(seconds[name])
        raw[name] = {
            **timing(seconds[name], seconds[dense]),
            "x_dense": min(seconds[dense]) / least,
            "x_plain": min(seconds[plain]) / least,
            "x_default_plain": min(seconds[PLAIN]) / least,
            "bytes": {"total": sizes.total, **vars(sizes)},
            "layout": contender.layout,
            "paths": {layer.name: layer.path for layer in bill.layers if layer.path},
        }
    for density in DENSITIES:
        still, moving = (raw[f"sparse {density:.0%}{more}"] for more in ("", ", updating"))
        still["updating_in_steps"] = moving["seconds_min"] / still["seconds_min"]
    for entry in raw.values():
        entry["bytes_of_dense"] = entry["bytes"]["total"] / raw[DENSE]["bytes"]["total"]
    return raw


def predicting(task: Problem, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of a plain pass and of `SAMPLES` samples over `ASKED` data, and how many passes the samples take."""
    x = task.x[:ASKED]
    found = {PLAIN + more: network(task, None, layout).model.eval() for more, layout in LAYOUTS.items()}
    inputs = {
        PLAIN + more: x.contiguous(memory_format=layout) if x.dim() == 4 else x for more, layout in LAYOUTS.items()
    }
    runs: dict[str, Callable[[], Any]] = {name: partial(model, inputs[name]) for name, model in found.items()}
    for density in DENSITIES:
        model = network(task, sparse_rules(task, density, NEVER), torch.contiguous_format).model.eval()
        runs[f"sparse {density:.0%}"] = partial(lb.predict, model, x, samples=SAMPLES, seed=0, task="classification")
    with torch.inference_mode():
        seconds = interleaved(runs, repeats)
    plain = min((PLAIN + more for more in LAYOUTS), key=lambda name: min(seconds[name]))
    return {
        name: {**timing(taken, seconds[plain]), "plain_passes": min(taken) / min(seconds[plain])}
        for name, taken in seconds.items()
    }


def shared(task: Problem, density: float) -> float:
    """The share of the weights that an update brings in that one by gradients in single precision brings in too."""
    places = []
    for half in (True, False):
        contender = network(task, sparse_rules(task, density, 1), torch.contiguous_format)
        before = [q.index.clone() for q in weights(contender.model)]
        torch.manual_seed(2)
        with mock.patch.object(growth, "MANY", growth.MANY if half else 2**60):
            contender.step()
        after = [q.index for q in weights(contender.model)]
        places.append({(n, i) for n, (a, b) in enumerate(zip(after, before, strict=True)) for i in a[a != b].tolist()})
    return len(places[0] & places[1]) / max(len(places[1]), 1)


def weights(model: nn.Module) -> list[Sparse]:
    """The sparse weights of a network."""
    return [q for q in model.modules() if isinstance(q, Sparse)]


def main() -> None:
    """Measure, print and write."""
    options = _options()
    torch.set_num_threads(options.threads)
    kept = keep_freed_memory()
    if options.level is not None and (native := library.library()) is not None:
        native.leanbayes_level(options.level)
    raw: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for task in problems(options.quick, options.batch):
        raw[task.name] = measure(task, options.repeats)
        asked[task.name] = predicting(task, options.repeats)
        for density in DENSITIES:
            entry, name = raw[task.name][f"sparse {density:.0%}"], f"{task.name} {density:.0%}"
            ratios[f"{name}: dense VI / sparse"] = entry["x_dense"]
            ratios[f"{name}: plain / sparse"] = entry["x_plain"]
            ratios[f"{name}: plain in torch's default format / sparse"] = entry["x_default_plain"]
            ratios[f"{name}: bytes of dense VI"] = entry["bytes_of_dense"]
            ratios[f"{name}: step with an update / step"] = entry["updating_in_steps"]
            ratios[f"{name}: new weights as by single precision"] = shared(task, density)
            passes = asked[task.name][f"sparse {density:.0%}"]["plain_passes"]
            ratios[f"{name}: {SAMPLES} samples / plain pass"] = passes
    threads = torch.get_num_threads()
    settings = {"batch": options.batch, "optimiser": "SGD with momentum", "kernels": library.instructions()}
    settings["freed memory is kept"] = kept
    for name, value in ratios.items():
        if "samples" in name or "single" in name:
            print(f"{name}: {value:.3f}")
    header = ("", "s (min)", "x dense VI", "x plain", "bytes", "of dense VI", "with update / step")
    publish(
        result("sparse", ratios, {**raw, "prediction": asked}, **settings),
        options,
        f"One training step, batch {options.batch}, {threads} threads",
        [header, *(_row(name, who, found) for name in raw for who, found in raw[name].items())],
    )


def _row(name: str, who: str, found: dict[str, Any]) -> tuple[str, ...]:
    update = found.get("updating_in_steps")
    return (
        f"{name}, {who}",
        f"{found['seconds_min']:.4f}",
        f"{found['x_dense']:.2f}",
        f"{found['x_plain']:.2f}",
        f"{found['bytes']['total']:,}",
        f"{found['bytes_of_dense']:.1%}",
        "-" if update is None else f"{update:.2f}",
    )


def _options() -> argparse.Namespace:
    options = parser(__doc__, repeats=7)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument(
        "--level", type=int, choices=(0, 1, 2), help="instruction set of the kernels: any, AVX2, AVX-512"
    )
    found = options.parse_args()
    if found.quick:
        found.repeats, found.batch = 1, min(found.batch, 32)
    return found


if __name__ == "__main__":
    main()
