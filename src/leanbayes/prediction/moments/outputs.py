"""From the moments of outputs to what a likelihood needs: a few hundred draws of them, which cost next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ..predictive import Predictive
from .across import JOINT
from .law import Moments

DRAWS = 128
"""Draws of the outputs of a datum,"""
FEWER = 32
"""and where a datum has an output for every position."""
_SOBOL = torch.quasirandom.SobolEngine.MAXDIM


def drawn(x: Moments, seed: int, root: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Outputs with these moments, (draws, batch, ...): Gaussian, at the points of a scrambled Sobol sequence.

    Their means and variances are those of x but for rounding. root: of positive definite matrices, a lower triangular
    one; by default torch's, with another way where one is singular.
    """
    shape = x.mean.shape[1:]
    count = DRAWS if len(shape) <= 1 else FEWER
    width = shape.numel() if len(shape) <= 1 else shape[0]
    noise = normals(count, width, seed).to(x.mean)
    if len(shape) > 1:  # the outputs of a position are drawn together, positions alike: each is looked at by itself
        return torch.addcmul(x.mean, x.std, noise.view(count, 1, width, *(1,) * (len(shape) - 1)))
    if x.covariance is None or not 1 < width <= JOINT:
        return torch.addcmul(x.mean, x.std, noise.view(count, 1, *shape))
    factor = _root(x.covariance(), root)
    return x.mean + torch.einsum("kc,ndc->knd", noise, factor)


def one_gaussian(said: Predictive) -> Predictive:
    """A regression by moments alone is a Gaussian, not the mixture that its draws would be; others as they are."""
    if said.engine != "moments" or said.task != "regression":
        return said
    return replace(
        said, drawn=said.mean.unsqueeze(0), noise=said.variance.unsqueeze(0), counts=torch.ones_like(said.counts)
    )


def _root(covariance: Tensor, root: Callable[[Tensor], Tensor] | None) -> Tensor:
    """L with L L^T = covariance, which may be singular."""
    wide = covariance.double()
    scale = wide.diagonal(dim1=1, dim2=2).amax(1).clamp_min(1e-30)[:, None, None]
    jitter = 1e-9 * torch.eye(wide.shape[1], dtype=wide.dtype, device=wide.device)
    if root is not None:
        return (root(wide / scale + jitter) * scale.sqrt()).to(covariance.dtype)
    found, failed = torch.linalg.cholesky_ex(wide / scale + jitter)
    if bool(failed.any()):
        values, vectors = torch.linalg.eigh(wide / scale)
        found = vectors * values.clamp_min(0).sqrt().unsqueeze(1)
    return (found * scale.sqrt()).to(covariance.dtype)


@lru_cache(maxsize=8)
def normals(count: int, width: int, seed: int) -> Tensor:
    """Standard normal numbers (count, width) that fill space evenly, of mean 0 and variance 1 in every column.

    >>> z = normals(128, 10, 0)
    >>> z.shape, bool((z.mean(0).abs() < 1e-6).all())
    (torch.Size([128, 10]), True)
    """
    engine = torch.quasirandom.SobolEngine(min(width, _SOBOL), scramble=True, seed=seed % 2**31)
    z = torch.special.ndtri(engine.draw(count // 2, dtype=torch.float64).clamp(1e-9, 1 - 1e-9))
    z = torch.cat([z, -z])
    z = z / z.square().mean(0).sqrt()
    repeats = -(-width // z.shape[1])
    return z.repeat(1, repeats)[:, :width]
