"""The maximum mean discrepancy between two sets of samples, by an RBF and a polynomial kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..checks import number, one_of, refuse, whole_number
from ..errors import ConfigError

Kernel = Literal["rbf", "polynomial", "both"]
KERNELS = ("rbf", "polynomial", "both")


@dataclass(frozen=True)
class MMD:
    r"""The unbiased estimate of MMD^2(p, q) from S samples of p and R of q (Gretton et al. 2012, eq. 3).

    1 / (S (S - 1)) sum_{i != j} k(x_i, x_j) + 1 / (R (R - 1)) sum_{i != j} k(y_i, y_j) - 2 / (S R) sum_ij k(x_i, y_j)

    Being unbiased it may be a little below 0. ``MMD()(x, y)`` takes x (..., S, C) and y (..., R, C) and returns (...,).

    kernel: "rbf", the mean of exp(-|x - y|^2 / (2 h^2)) over the bandwidths h; "polynomial", the sum of
    (x . y)^d over the degrees d = 1 to ``degree``, which compares so many moments; "both", their sum.
    bandwidths: None for 1/2, 1 and 2 times the median distance between the samples of both sets together (no gradient
    flows through it), which is never below FLOOR: where nearly all probability is on one class in all samples, smaller
    differences do not count.

    >>> x = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> MMD()(x, x + torch.tensor([-0.5, 0.5])) > MMD()(x, x + torch.tensor([-0.1, 0.1]))
    tensor(True)
    """

    kernel: Kernel = "both"
    bandwidths: tuple[float, ...] | None = None
    degree: int = 3

    FLOOR = 1e-3

    def __post_init__(self) -> None:
        one_of("kernel", self.kernel, KERNELS)
        whole_number("degree", self.degree, at_most=10)
        given = self.bandwidths
        if given is not None:
            if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
                refuse("bandwidths", "None or positive numbers such as (0.1, 0.5)", given)
            object.__setattr__(self, "bandwidths", tuple(number("bandwidths", h, above=0) for h in given))

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[-2] < 2 or y.shape[-2] < 2 or x.shape[-1] != y.shape[-1]:
            raise ConfigError(
                "mmd: expected two samples or more on both sides, in as many dimensions, received shapes "
                f"{tuple(x.shape)} and {tuple(y.shape)}"
            )
        return sum(_unbiased(k, x, y) for k in self._kernels(x, y))  # type: ignore[return-value]

    def _kernels(self, x: Tensor, y: Tensor) -> list[Callable[[Tensor, Tensor], Tensor]]:
        found: list[Callable[[Tensor, Tensor], Tensor]] = []
        if self.kernel != "polynomial":
            if self.bandwidths is None:
                median = median_distance(x, y).clamp_min(self.FLOOR)
                widths = torch.stack([median / 2, median, 2 * median])
            else:
                widths = x.new_tensor(self.bandwidths)
            widths = widths.reshape(*widths.shape, *(1,) * (x.ndim - widths.ndim + 1))
            found.append(lambda a, b: torch.exp(-squared_distances(a, b) / (2 * widths.square())).mean(0))
        if self.kernel != "rbf":
            found.append(lambda a, b: sum((a @ b.mT).pow(d) for d in range(1, self.degree + 1)))  # type: ignore[arg-type,return-value]
        return found


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2, (..., S, R): by differences, since that of products cancels where samples lie close together."""
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)


def median_distance(x: Tensor, y: Tensor) -> Tensor:
    """The median of the distances between all different samples of both sets, (...,), without a gradient.

    >>> median_distance(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0]]))  # 1, 2 and 3
    tensor(2.)
    """
    both = torch.cat([x, y], -2).detach()
    first, second = torch.triu_indices(both.shape[-2], both.shape[-2], 1, device=both.device)
    return (both[..., first, :] - both[..., second, :]).square().sum(-1).median(-1).values.sqrt()


def _unbiased(kernel: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return _apart(kernel(x, x)) + _apart(kernel(y, y)) - 2 * kernel(x, y).mean((-1, -2))


def _apart(gram: Tensor) -> Tensor:
    """The mean over the pairs of different samples."""
    size = gram.shape[-1]
    return (gram.sum((-1, -2)) - gram.diagonal(dim1=-2, dim2=-1).sum(-1)) / (size * (size - 1))
