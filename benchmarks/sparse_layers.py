"""One convolution, both passes: plain, dense VI, RigL, sparse VI, and SparseProp at the nonzeros of RigL.

The layers are those of ResNet-18 for CIFAR; all contenders of a layer take turns in one process on one thread, with the
same input, weight and gradient at the output, and compute the gradients of input and parameters. Plain and dense VI run
in both memory formats, SparseProp in both of its orders; the faster counts. Activations of our sparse layers are in
blocks, as they are between the layers of a network. Before anything is timed, SparseProp and our layer of means alone
are compared with the plain convolution of the same weight.

SparseProp is deterministic: it computes what our "sparse" (RigL) does, while "sparse VI", with as many nonzeros,
also has variances and noise. Ratios are medians over rounds, with their quartiles.

    pip install pybind11 && pip install --no-build-isolation sparseprop    # the peer, where wanted
    python benchmarks/sparse_layers.py
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/sparse_layers.py --level 1 \
        --output benchmarks/results/sparse_layers_avx2.json
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from common import parser, publish, result
from leanbayes.cli.memory import keep_freed_memory
from leanbayes.kernels import library
from leanbayes.kernels.blocked import Blocked, Cell
from leanbayes.kernels.layout import block
from leanbayes.layers.sparse import unsuitable

FORMATS = {"": torch.contiguous_format, ", channels last": torch.channels_last}
FAMILIES = ("plain", "dense VI", "sparse", "sparse VI", "SparseProp")


@dataclass(frozen=True)
class Layer:
    """A 2-d convolution, the side of its images, and the share of its weight that is there."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int
    density: float

    def __str__(self) -> str:
        channels = f"{self.inputs}" if self.inputs == self.outputs else f"{self.inputs}->{self.outputs}"
        more = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{channels}@{self.side} {self.kernel}x{self.kernel}{more} {self.density:.0%}"


def layers(quick: bool, density: float) -> list[Layer]:
    """The four 3x3 layers of ResNet-18 first, then its stem and what stands where the size changes."""
    wide = [(64, 32), (128, 16), (256, 8), (512, 4)]
    found = [Layer(c, c, 3, 1, side, density) for c, side in wide]
    found += [Layer(3, 64, 3, 1, 32, 1.0), Layer(64, 128, 3, 2, 32, density), Layer(64, 128, 1, 2, 32, density)]
    return [Layer(16, 16, 3, 1, 8, density)] if quick else found


def contenders(layer: Layer, x: Tensor) -> dict[str, tuple[nn.Module, Tensor]]:
    """Modules with the same weight, each with its input in its own format."""
    torch.manual_seed(1)
    conv = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.kernel // 2, bias=False)
    ours = nn.Sequential(conv)
    lb.bayesianize_(ours, lb.SparseSubspace(density=layer.density, keep_weights=False))
    rigl = _plain(conv)
    lb.bayesianize_(rigl, lb.Rigl(density=layer.density, keep_weights=False))
    given: Any = rigl[0]
    weight = given.posterior("weight").mean.detach()
    found: dict[str, tuple[nn.Module, Tensor]] = {}
    for more, layout in FORMATS.items():
        plain = _plain(conv, weight).to(memory_format=layout)  # type: ignore[call-overload]
        dense = _plain(conv, weight).to(memory_format=layout)  # type: ignore[call-overload]
        lb.bayesianize_(dense, lb.MeanField(random_bias=False))
        laid_out = x.contiguous(memory_format=layout)
        found |= {f"plain{more}": (plain, laid_out), f"dense VI{more}": (dense, laid_out)}
    blocked = Blocked(Cell(block(x), len(x)), x.shape)
    found |= {"sparse": (rigl, blocked), "sparse VI": (ours, blocked)}
    assert int((weight != 0).sum()) == round(layer.density * weight.numel()), "another density was to be compared"
    if importlib.util.find_spec("sparseprop") is not None and layer.inputs == layer.outputs:
        from sparseprop.modules.conv2d import SparseConv2d

        for over in (False, True)[: 1 + (layer.side >= 8)]:  # a register is as wide as 8 columns
            peer = SparseConv2d.from_dense(_plain(conv, weight)[0], vectorizing_over_on=over)
            found[f"SparseProp{', over columns' if over else ''}"] = (peer, x)
    expected = found["plain"][0](x)
    for name in [n for n in found if n.startswith("SparseProp") or n == "sparse"]:
        torch.testing.assert_close(found[name][0](found[name][1]).contiguous() + 0, expected, rtol=1e-3, atol=1e-3)
    return found


def _plain(conv: nn.Conv2d, weight: Tensor | None = None) -> nn.Sequential:
    made = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        conv.stride,
        conv.padding,
        bias=False,  # type: ignore[arg-type]
    )
    with torch.no_grad():
        made.weight.copy_(_dense(conv) if weight is None else weight)
    return nn.Sequential(made)


def _dense(conv: nn.Conv2d) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size) * 0.05


def passes(module: nn.Module, x: Tensor, grad: Tensor, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of a forward and of a backward pass."""
    x = x.detach().requires_grad_()
    wanted = [x, *module.parameters()]
    gc.collect()
    start = clock()
    y = module(x)
    middle = clock()
    torch.autograd.grad(y, wanted, grad)
    return middle - start, clock() - middle


def measure(layer: Layer, batch: int, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Medians of both passes by contender, and of ratios by family."""
    torch.manual_seed(0)
    x = torch.randn(batch, layer.inputs, layer.side, layer.side)
    found = contenders(layer, x)
    shape = found["plain"][0](x).shape
    plain = torch.randn(shape)
    grads = {
        name: plain.contiguous(memory_format=FORMATS[", channels last"]) if "last" in name else plain for name in found
    }
    grads["sparse"] = grads["sparse VI"] = Blocked(Cell(block(plain), batch), shape)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for turn in range(repeats + 1):
        for name, (module, given) in found.items():
            both = passes(module, given, grads[name], clock)
            if turn:
                times[name].append(both)
    entry: dict[str, Any] = {}
    for name, pairs in times.items():
        entry[name] = {
            "forward": statistics.median(f for f, _ in pairs),
            "backward": statistics.median(b for _, b in pairs),
            "seconds": [f + b for f, b in pairs],
        }
    best = {}
    for family in FAMILIES:
        of = [name for name in found if name.split(",")[0] == family]
        if of:
            best[family] = min(of, key=lambda name: statistics.median(entry[name]["seconds"]))
    ratios = {}
    for ours in ("sparse", "sparse VI"):
        for other in ("plain", "dense VI", "SparseProp"):
            if other in best:
                pairs = zip(entry[best[other]]["seconds"], entry[ours]["seconds"], strict=True)
                ratios[f"{other} / {ours}"] = statistics.quantiles([a / b for a, b in pairs], n=4)
    path = unsuitable(found["sparse VI"][0][0])  # type: ignore[index]
    return {"times": entry, "best": best, "quartiles": ratios, "path": "kernels" if path is None else path}


def main() -> None:
    """Measure, print and write."""
    options = _options()
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.level is not None and (native := library.library()) is not None:
        native.leanbayes_level(options.level)
    clock = time.thread_time if options.cpu_time else time.perf_counter
    compared = ("plain / sparse VI", "SparseProp / sparse", "SparseProp / sparse VI")
    raw: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = [("ms", *FAMILIES, *compared)]
    for layer in layers(options.quick, options.density):
        print(layer, flush=True, file=sys.stderr)
        entry = raw[str(layer)] = measure(layer, options.batch, options.repeats, clock)
        times = [entry["best"].get(family) for family in FAMILIES]
        cells = ["-" if n is None else f"{1e3 * statistics.median(entry['times'][n]['seconds']):.1f}" for n in times]
        shown = [entry["quartiles"].get(name) for name in compared]
        rows.append((str(layer), *cells, *("-" if q is None else f"{q[1]:.2f} ({q[0]:.2f}-{q[2]:.2f})" for q in shown)))
    ratios = {f"{name}: {pair}": q[1] for name, entry in raw.items() for pair, q in entry["quartiles"].items()}
    told = {
        "batch": options.batch,
        "kernels": library.instructions(),
        "clock": "processor" if options.cpu_time else "wall",
    }
    told["torch runs"] = torch.backends.cpu.get_cpu_capability()
    title = f"One convolution, forward and backward, batch {options.batch}, one thread, {told['kernels']}"
    publish(result("sparse_layers", ratios, raw, **told), options, title, rows)


def _options() -> argparse.Namespace:
    options = parser(__doc__, repeats=7)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--density", type=float, default=0.05)
    options.add_argument(
        "--level", type=int, choices=(0, 1, 2), help="instruction set of the kernels: any, AVX2, AVX-512"
    )
    options.add_argument("--cpu-time", action="store_true", help="processor time, for a machine that others use too")
    found = options.parse_args()
    if found.quick:
        found.repeats, found.batch = 2, min(found.batch, 32)
    return found


if __name__ == "__main__":
    main()
