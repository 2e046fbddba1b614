"""How much faster a network is at a quarter of its width: what `extract` makes of a nested network, one image and 64.

Every network becomes nested, is cut to a quarter of its channels and to all of them, with BatchNorm folded into
convolutions, and the two run in turns. Ratios are the narrow network's time over the wide one's: the minima of all
rounds, and the median over rounds. "MACs": of the narrow network, as a share. At a quarter of the channels arithmetic
is about 1/16; what one image takes beyond that is dispatch, which is the same for both. On one thread
processor time is measured.

    python benchmarks/widths.py --threads 1
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import leanbayes as lb
from common import interleaved, parser, passes, publish, result, started, timing
from leanbayes import costs, models

NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "vgg11_bn": ({}, (3, 32, 32)),
    "resnext_cifar": ({"cardinality": 4, "base_width": 32}, (3, 32, 32)),
    "mobilenet_v2": ({}, (3, 32, 32)),
    "resnet18_cifar": ({}, (3, 32, 32)),
    "unet": ({"norm": "batch"}, (1, 64, 64)),
    "mlp": ({"in_features": 784, "hidden": [1024, 1024], "out_features": 10}, (784,)),
}
QUICK: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mlp": ({"in_features": 8, "hidden": [32, 32], "out_features": 3}, (8,)),
    "vgg11_bn": ({"width": 0.125, "hidden": 16}, (3, 32, 32)),
}
WIDTHS = {"narrow": 0.25, "whole": 1.0}
BATCHES = (1, 64)


def cut(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, nn.Module]:
    """A network at a quarter of its width and as a whole, both as `extract` makes them."""
    torch.manual_seed(0)
    model = models.build(name, **options).eval()
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, input_shape=shape))
    return {who: lb.extract(model, width=width, fold_batchnorm=True).eval() for who, width in WIDTHS.items()}


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=9).parse_args()
    clock, settings = started(options)
    raw: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    rows = [("network, batch", "x of the whole, minima", "median", "MACs", "ms, narrow", "ms, whole")]
    for name, (built_with, shape) in (QUICK if options.quick else NETWORKS).items():
        networks = cut(name, built_with, shape)
        macs = {who: costs.cost(model, torch.zeros(1, *shape)).macs for who, model in networks.items()}
        for batch in BATCHES:
            x, times = torch.randn(batch, *shape), 1 if options.quick or batch > 1 else 10
            runs = {who: passes(model, [x] * times) for who, model in networks.items()}
            seconds = interleaved(runs, 2 if options.quick else options.repeats, clock)
            each = {
                who: timing([s / times for s in taken], [s / times for s in seconds["whole"]])
                for who, taken in seconds.items()
            }
            label, narrow = f"{name}, batch {batch}", each["narrow"]
            raw[label] = {**each, "MACs": macs["narrow"] / macs["whole"]}
            ratios[label] = narrow["ratio_of_minima"]
            figures = [narrow["ratio_of_minima"], narrow["median_of_ratios"], macs["narrow"] / macs["whole"]]
            spent = [1e3 * each[who]["seconds_min"] for who in WIDTHS]
            rows.append((label, *(f"{value:.3f}" for value in (*figures, *spent))))
    publish(
        result("widths", ratios, raw, width=WIDTHS["narrow"], **settings),
        options,
        f"A quarter of the width, {torch.get_num_threads()} thread(s)",
        rows,
    )


if __name__ == "__main__":
    main()
