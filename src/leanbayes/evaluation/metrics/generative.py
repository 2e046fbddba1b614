"""Generated data compared with real data in a feature space: Frechet distance, precision, recall, density, coverage."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import checks
from ...errors import EvaluationError


def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """The squared 2-Wasserstein distance between Gaussians fitted to two sets of features (Heusel et al., 2017).

    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1^(1/2) S2 S1^(1/2))^(1/2)), in double precision. With features of an Inception
    network it is the FID; with those of another network it must be called by that.

    real, generated: (n, features), n of 2 or more.

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    >>> round(frechet_distance(x, x + 3), 6)
    18.0
    """
    _check(real, generated, 2)
    moments = []
    for points in (real.double(), generated.double()):
        centred = points - points.mean(0)
        moments.append((points.mean(0), centred.T @ centred / (len(points) - 1)))
    (mean1, cov1), (mean2, cov2) = moments
    values, vectors = torch.linalg.eigh(cov1)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ cov2 @ root).clamp_min(0).sqrt().sum()
    return float((mean1 - mean2).square().sum() + cov1.trace() + cov2.trace() - 2 * cross)


def manifold_metrics(real: Tensor, generated: Tensor, k: int = 5) -> dict[str, float]:
    """Precision, recall (Kynkaanniemi et al., 2019), density and coverage (Naeem et al., 2020).

    Every real point has a ball that reaches to its k-th nearest other real point, every generated one likewise.
    precision: the part of the generated points within a ball of a real one; recall: of the real points within a ball of
    a generated one; density: within how many balls of real points a generated one is on average, over k; coverage: the
    part of the real balls that hold a generated point.

    real, generated: (n, features), n above k.

    >>> x = torch.arange(20.0).unsqueeze(1)
    >>> manifold_metrics(x, x + 0.5, k=1)
    {'precision': 1.0, 'recall': 1.0, 'density': 1.95, 'coverage': 1.0}
    """
    k = checks.whole_number("k", k, error=EvaluationError)
    _check(real, generated, k + 1)
    real, generated = real.double(), generated.double()
    between = torch.cdist(real, generated)
    of_real, of_generated = _radii(real, k).unsqueeze(1), _radii(generated, k)
    inside = between < of_real
    return {
        "precision": float(inside.any(0).double().mean()),
        "recall": float((between < of_generated).any(1).double().mean()),
        "density": float(inside.double().sum(0).mean() / k),
        "coverage": float(inside.any(1).double().mean()),
    }


def _radii(points: Tensor, k: int) -> Tensor:
    """The distance of each point from its k-th nearest other one."""
    return torch.cdist(points, points).kthvalue(k + 1, 1).values  # the nearest is the point itself


def _check(real: Tensor, generated: Tensor, least: int) -> None:
    for name, points in (("real", real), ("generated", generated)):
        if not isinstance(points, Tensor) or points.ndim != 2 or len(points) < least:
            raise EvaluationError(
                f"{name}: expected features of shape (n, features) with n of at least {least}, received "
                f"{checks.short(points)}"
            )
        if not bool(points.isfinite().all()):
            raise EvaluationError(f"{name}: expected finite features")
    if real.shape[1] != generated.shape[1]:
        raise EvaluationError(
            f"expected as many features of both sets, received {real.shape[1]} and {generated.shape[1]}"
        )
