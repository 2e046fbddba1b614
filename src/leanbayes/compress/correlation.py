"""How alike the uncertainties of a nested network are at different widths, and how narrow a student may be."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import batches, checks
from ..errors import ConfigError, DataError
from ..prediction.api import predict
from ..report.figure import canvas, svg
from ..report.matrix import matrix
from ..training.recalibrate import recalibrate_
from .width import set_width_, widths as possible_widths

Uncertainty = Literal["entropy", "mutual_information"]


@dataclass(frozen=True)
class WidthCorrelation:
    """Pearson correlations of the uncertainties at all pairs of widths (variational nested dropout, figure 5).

    widths: ascending, W of them. inside: (W, W), of the data. outside: the same of other data, by name.
    uncertainty: what is correlated.
    """

    widths: tuple[float, ...]
    inside: Tensor
    outside: Mapping[str, Tensor] = field(default_factory=dict)
    uncertainty: str = "entropy"

    def suggested(self, threshold: float = 0.9) -> float:
        """The narrowest width that, like all wider ones, correlates with the widest by ``threshold`` on all data.

        >>> found = torch.tensor([[1.0, 0.5, 0.4], [0.5, 1.0, 0.95], [0.4, 0.95, 1.0]])
        >>> WidthCorrelation((0.25, 0.5, 1.0), found).suggested()
        0.5
        """
        threshold = checks.number("threshold", threshold, above=-1, at_most=1)
        lowest = torch.stack([self.inside[-1], *(each[-1] for each in self.outside.values())]).amin(0)
        found = self.widths[-1]
        for width, value in zip(reversed(self.widths), reversed(lowest.tolist()), strict=True):
            if value < threshold and width < self.widths[-1]:
                break
            found = width
        return found

    def figure(self) -> str:
        """A heat map for every set of data, side by side, as an ``<svg>`` element."""
        panels = {"in domain": self.inside, **self.outside}
        names, each = [f"{width:.0%}" for width in self.widths], 1.2 + 0.5 * len(self.widths)
        with canvas(columns=len(panels), width=each * len(panels), height=each) as (drawn, _):
            said = [
                matrix(ax, values.tolist(), names, heading)
                for ax, (heading, values) in zip(drawn.axes, panels.items(), strict=True)
            ]
            return svg(drawn, f"Correlation of {self.uncertainty.replace('_', ' ')} between widths", "; ".join(said))

    def _repr_html_(self) -> str:
        return self.figure()


def width_correlation(
    model: nn.Module,
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    widths: Sequence[float] | None = None,
    uncertainty: Uncertainty = "entropy",
    clean: Any = None,
    samples: int = 8,
    seed: int = 0,
    task: Any = None,
) -> WidthCorrelation:
    """Correlate what a nested classifier is unsure of at its widths, in and out of domain.

    Where a narrow network doubts the same data as the whole one, it can be taught to stand for it: the paper cuts a
    student for `distill` where the correlation becomes strong. ``.suggested()`` is that width, ``.figure()`` the map.

    data: inputs, in whatever `predict` takes; targets of loaders are not looked at. ood: other data by name.
    widths: which; by default ten of those that are possible, evenly. uncertainty: "entropy" (total) or
    "mutual_information".
    clean: inputs from which BatchNorm's statistics are collected at every width, those of training preferably; by
    default the data.

    The model stays as it is.

    >>> import leanbayes as lb
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    >>> _ = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=2))
    >>> found = width_correlation(model, torch.randn(50, 4), widths=(0.25, 0.5, 1.0), task="classification")
    >>> found.inside.shape, found.inside.diagonal()
    (torch.Size([3, 3]), tensor([1., 1., 1.]))
    """
    known = possible_widths(model)
    checks.one_of("uncertainty", uncertainty, ("entropy", "mutual_information"))
    samples, seed = checks.samples(samples), checks.seed(seed)
    if ood is not None:
        checks.instance("ood", ood, Mapping, "data by name, such as {'svhn': loader}")
    if widths is None:
        widths = [known[round(i * (len(known) - 1) / 9)] for i in range(10)] if len(known) > 10 else known
    asked = sorted(set(checks.iterable_of("widths", widths, "numbers", partial(checks.number, above=0, at_most=1))))
    if len(asked) < 2:
        raise ConfigError(f"widths: expected two different ones or more, received {checks.short(widths)}")
    sets = {"": data, **(ood or {})}
    found: dict[str, list[Tensor]] = {name: [] for name in sets}
    norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    for width in asked:
        narrow = copy.deepcopy(model)
        set_width_(narrow, width)
        if norms:
            recalibrate_(narrow, data if clean is None else clean, seed=seed)
        for name, inputs in sets.items():
            given = inputs if not isinstance(inputs, tuple) else batches.split(inputs)[0]
            said = predict(narrow, given, samples, seed, task=task)
            found[name].append((said.entropy if uncertainty == "entropy" else said.mutual_information).flatten())
    if any(len(each[0]) < 2 for each in found.values()):
        raise DataError("data: expected two data or more, since a correlation is over data, received one")
    maps = {name: torch.corrcoef(torch.stack(each).double()).float() for name, each in found.items()}
    return WidthCorrelation(tuple(asked), maps.pop(""), maps, uncertainty)
