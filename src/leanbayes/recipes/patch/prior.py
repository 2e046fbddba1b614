"""Figure 3 of ensemble model patching: functions drawn from a network of one hidden layer under dropout and under EMP.

f(x) = B + sum_h W_h sign(b_h + w_h x), H = 100, biases from N(0, 20), weights from N(0, 5) (appendix D.1), read as
standard deviations. Dropout sets every w_h and every W_h to zero with probability 0.5: a unit whose w_h is gone is a
constant and adds no step, and so is one whose W_h is. EMP takes the hidden layer and the output each from one of K = 5
components, all drawn from that prior, ECMP every weight by itself: a single function is then a draw from the prior
itself, as fine as the full network's. What the mixture restricts shows in pairs of functions.

steps: how many of the 100 steps a function has on [-10, 10], the finer details of the paper. levels: how many different
values it has there. spread: its standard deviation over x, divided by 5 sqrt(H). correlation: of two functions drawn
from the same mixture, over x: EMP's share their components, dropout's their weights. None is printed in the paper.
A row "METHOD, drawn" has the curves of three functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from ..experiment import Cell, Experiment
from ..figures.patch import prior
from ..jobs import Jobs
from ..results import Measured, Metrics

METHODS = ("full network", "dropout", "EMP", "ECMP")


@dataclass(frozen=True)
class PriorSetup:
    """hidden: units. components: K. functions: how many pairs the numbers are averaged over. points: of the drawing."""

    hidden: int = 100
    components: int = 5
    rate: float = 0.5
    weight_std: float = 5.0
    bias_std: float = 20.0
    functions: int = 2000
    points: int = 201
    seeds: int = 3


SETUPS = {
    "smoke": PriorSetup(functions=50, points=21, seeds=1),
    "cpu": PriorSetup(),
    "paper": PriorSetup(functions=20_000),
}


def cells(preset: str) -> Iterator[Cell]:
    """A row for every method, and the functions that are drawn for the figure."""
    setup = SETUPS[preset]
    for method in METHODS:
        key = {"measured": "patch-prior", **asdict(setup), "method": method}
        yield Cell("functions", method, setup.hidden, key, partial(measured, setup, method), setup.seeds)
    for method in METHODS[1:3]:
        key = {"measured": "patch-prior, drawn", **asdict(setup), "method": method}
        yield Cell("functions", f"{method}, drawn", setup.points, key, partial(drawn, setup, method), seeds=None)


def grid(setup: PriorSetup, width: float = 10.0) -> list[float]:
    """The points where functions are drawn."""
    return [width * (2 * k / (setup.points - 1) - 1) for k in range(setup.points)]


@dataclass(frozen=True)
class Weights:
    """All weights of several networks: hidden w and b (n, H), output W (n, H) and B (n, 1)."""

    w: Tensor
    b: Tensor
    output: Tensor
    shift: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """f(x) = B + sum_h W_h sign(b_h + w_h x), (n, points)."""
        inside = self.b.unsqueeze(2) + self.w.unsqueeze(2) * x
        return self.shift + (self.output.unsqueeze(1) @ inside.sign()).squeeze(1)


def pair(setup: PriorSetup, method: str, count: int, generator: Generator) -> tuple[Weights, Weights]:
    """Two draws of the weights from the same mixture, `count` mixtures in all."""
    centres = _centres(setup, method, count, generator)
    return tuple(_draw(setup, method, centres, generator) for _ in range(2))  # type: ignore[return-value]


def _centres(setup: PriorSetup, method: str, count: int, generator: Generator) -> Weights:
    """The components (n, K, H), from the normal prior; one where there is no mixture but zeros."""
    k = setup.components if method in ("EMP", "ECMP") else 1

    def normal(std: float, width: int) -> Tensor:
        return std * torch.randn(count, k, width, generator=generator)

    return Weights(
        normal(setup.weight_std, setup.hidden),
        normal(setup.bias_std, setup.hidden),
        normal(setup.weight_std, setup.hidden),
        normal(setup.bias_std, 1),
    )


def _draw(setup: PriorSetup, method: str, centres: Weights, generator: Generator) -> Weights:
    count, k, hidden = centres.w.shape
    if method in ("full network", "dropout"):
        rate = setup.rate if method == "dropout" else 0.0
        keep = [(torch.rand(count, hidden, generator=generator) >= rate).to(centres.w.dtype) for _ in range(2)]
        return Weights(centres.w[:, 0] * keep[0], centres.b[:, 0], centres.output[:, 0] * keep[1], centres.shift[:, 0])
    if method == "EMP":  # one index a layer, weight and bias together
        first, second = (torch.randint(k, (count, 1, 1), generator=generator) for _ in range(2))
        index = {"w": first, "b": first, "output": second, "shift": second}
    else:
        shapes = {"w": hidden, "b": hidden, "output": hidden, "shift": 1}
        index = {name: torch.randint(k, (count, 1, n), generator=generator) for name, n in shapes.items()}
    parts = ((name, vars(centres)[name], i) for name, i in index.items())
    return Weights(**{name: t.gather(1, i.expand(-1, -1, t.shape[2])).squeeze(1) for name, t, i in parts})


def measured(setup: PriorSetup, method: str, jobs: Jobs, seed: int) -> Metrics:
    """How fine the functions of a method are, and how alike two of the same mixture."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-10, 10, 2001)
    totals: dict[str, list[Tensor]] = {"steps": [], "levels": [], "spread": [], "correlation": []}
    left = setup.functions
    while left > 0:
        count = min(left, 50)
        left -= count
        one, two = pair(setup, method, count, generator)
        f, g = one(x), two(x)
        at = -one.b / one.w  # a step of size 2 W_h, where the unit changes its sign
        totals["steps"].append(((at.abs() < 10) & (one.output != 0)).sum(1).double())
        totals["levels"].append(1 + (f.diff(dim=1).abs() > 1e-3).sum(1).double())
        totals["spread"].append(f.std(1).double() / (setup.weight_std * setup.hidden**0.5))
        totals["correlation"].append(_correlation(f, g).double())
    return {name: float(torch.cat(values).nanmean()) for name, values in totals.items()}


def drawn(setup: PriorSetup, method: str, jobs: Jobs, seed: int) -> Measured:
    """The values of three functions at every point of the grid, each from a mixture of its own."""
    one, _ = pair(setup, method, 3, torch.Generator().manual_seed(seed))
    values = one(torch.tensor(grid(setup))).T.tolist()
    points = zip(grid(setup), values, strict=True)
    return {"functions": [{"x": x, **dict(zip("abc", column, strict=True))} for x, column in points]}


def _correlation(f: Tensor, g: Tensor) -> Tensor:
    """Over x, of functions (n, points); undefined (NaN) where one is constant."""
    f, g = f - f.mean(1, keepdim=True), g - g.mean(1, keepdim=True)
    return (f * g).mean(1) / (f.square().mean(1) * g.square().mean(1)).sqrt()


EXPERIMENT = Experiment("patch-prior", cells, figure=prior)
