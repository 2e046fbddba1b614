"""The maximum mean discrepancy between two sets of samples, by an RBF and a polynomial kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
        both, first = torch.cat([x, y], -2), x.shape[-2]
        gram = torch.zeros((), dtype=both.dtype, device=both.device)
        if self.kernel != "polynomial":
            gram = gram + self._rbf(squared_distances(both, around=x.mean(-2, keepdim=True).detach()))
        if self.kernel != "rbf":
            gram = gram + self._polynomial(both @ both.mT)
        return (gram * _weights(first, y.shape[-2]).to(both)).sum((-1, -2))

    def _rbf(self, squared: Tensor) -> Tensor:
        if self.bandwidths is not None:
            return sum(torch.exp(squared / (-2 * h * h)) for h in self.bandwidths) / len(self.bandwidths)  # type: ignore[return-value]
        median = median_of_pairs(squared.detach()).sqrt().clamp_min(self.FLOOR)[..., None, None]
        wide = torch.exp(squared / (-8 * median.square()))  # of twice the median; those of less are powers of it
        middle = wide.square().square()
        return (wide + middle + middle.square().square()) / 3

    def _polynomial(self, products: Tensor) -> Tensor:
        total = products
        for _ in range(self.degree - 1):
            total = products * (1 + total)
        return total


def squared_distances(points: Tensor, around: Tensor) -> Tensor:
    """|z_i - z_j|^2 of points (..., n, C), (..., n, n); around: a point near them, so that little cancels."""
    centred = points - around
    norms = centred.square().sum(-1)
    return (norms.unsqueeze(-1) + norms.unsqueeze(-2) - 2 * centred @ centred.mT).clamp_min(0)


def median_of_pairs(matrix: Tensor) -> Tensor:
    """The median over all pairs of different points, (...,), of a symmetric matrix (..., n, n).

    >>> points = torch.tensor([[0.0], [1.0], [3.0]])
    >>> median_of_pairs(squared_distances(points, around=points[:1])).sqrt()  # of 1, 2 and 3
    tensor(2.)
    """
    first, second = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], 1, device=matrix.device)
    return matrix[..., first, second].median(-1).values


@lru_cache(maxsize=8)
def _weights(first: int, second: int) -> Tensor:
    """What each pair of points counts: 1 / (S (S - 1)), 1 / (R (R - 1)), -1 / (S R), and 0 for a point with itself."""
    found = torch.full((first + second, first + second), -1.0 / (first * second), dtype=torch.float64)
    found[:first, :first] = 1.0 / (first * (first - 1))
    found[first:, first:] = 1.0 / (second * (second - 1))
    return found.fill_diagonal_(0.0)
