"""What one pass on means and variances costs, in passes of the plain network.

The networks of the recipe `one-pass`, with the weights they begin with. "x plain": one pass over a pass of the plain
network in channels-last order, in which it is fastest; "x default order": over the same network in torch's default
order. Ratios of the minima of rounds in which all take turns. On one thread processor time is measured.

    python benchmarks/one_pass.py --threads 1
"""

from __future__ import annotations

import copy
from typing import Any

import torch

import leanbayes as lb
from common import interleaved, parser, passes, publish, result, started, timing
from leanbayes.recipes.compress.one_pass import SETUPS

BATCHES = (64, 256)


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=15).parse_args()
    clock, settings = started(options)
    raw: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    rows = [("network, posterior, images", "x plain", "x default order", "means, x plain", "ms", "ms, plain")]
    for name in ("smoke",) if options.quick else ("lenet", "resnet"):
        setup = SETUPS[name][0]
        for method, training in (("mean field", setup.dense()), ("sparse, 10 %", setup.subspace(0.1))):
            torch.manual_seed(0)
            data = training.load()
            plain, model = training.network(data).eval(), training.network(data)
            training.convert_(model)
            default = copy.deepcopy(plain).to(memory_format=torch.contiguous_format)
            for batch in BATCHES:
                x = data.test.tensors[0][:batch]
                asked = {"one pass": {"estimator": "moments"}, "means": {"mean_only": True}}
                runs = {"plain": passes(plain, [x]), "default order": passes(default, [x])}
                runs |= {
                    who: (lambda x=x, model=model, o=o: lb.predict(model.eval(), x, task="classification", **o))
                    for who, o in asked.items()
                }
                seconds = interleaved(runs, 2 if options.quick else options.repeats, clock)
                label = f"{setup.network or name}, {method}, {batch}"
                each = raw[label] = {who: timing(taken, seconds["plain"]) for who, taken in seconds.items()}
                spent = {who: found["seconds_min"] for who, found in each.items()}
                ratios[label] = spent["one pass"] / spent["plain"]
                ratios[f"{label}, default order"] = spent["one pass"] / spent["default order"]
                figures = [ratios[label], ratios[f"{label}, default order"], spent["means"] / spent["plain"]]
                times = [1e3 * spent["one pass"], 1e3 * spent["plain"]]
                rows.append((label, *(f"{value:.2f}" for value in (*figures, *times))))
    publish(
        result("one_pass", ratios, raw, **settings), options, f"One pass, {torch.get_num_threads()} thread(s)", rows
    )


if __name__ == "__main__":
    main()
