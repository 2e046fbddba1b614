"""Nested dropout with tails that are given, not learned (Rippel et al., 2014; Cui et al., 2020): the plain sibling."""

from __future__ import annotations

from torch import Tensor

from ..errors import ConfigError
from .downhill import gumbel_noise, widest


def nested_masks(log_beta: Tensor, noise: Tensor) -> Tensor:
    """Ordered masks with the tail probabilities exp(log_beta), as a function of standard Gumbel noise; no gradient.

    They equal hard samples of Downhill from the same noise. The broadcast shape of both, (..., K).

    >>> import torch
    >>> from leanbayes.ordering import categorical_tails
    >>> nested_masks(categorical_tails([1.0, 1.0, 1.0]), torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]))
    tensor([[1., 1., 0.],
            [1., 0., 0.]])
    """
    return widest(log_beta + noise).to(log_beta)


def nested_dropout(
    x: Tensor, log_beta: Tensor, *, dim: int = 1, per_sample: bool = True, noise: Tensor | None = None
) -> Tensor:
    """Sample a tail, drop everything beyond it along `dim`; what is kept is not rescaled.

    per_sample: one mask for each entry of dimension 0, or one for all of them.
    noise: standard Gumbel, (len(x), K) or (K,) accordingly; drawn where it is not given.

    >>> import torch
    >>> from leanbayes.ordering import geometric_tails
    >>> x = torch.ones(5, 3, 8, 8)
    >>> nested_dropout(x, geometric_tails(3, rate=0.1)).shape
    torch.Size([5, 3, 8, 8])
    """
    at, nodes = dim % x.ndim, log_beta.shape[-1]
    if log_beta.ndim != 1 or x.shape[at] != nodes or (per_sample and at == 0):
        raise ConfigError(
            f"nested_dropout: expected x with one entry a node along dim {dim}, received {tuple(x.shape)} and tails "
            f"of shape {tuple(log_beta.shape)}" + ("; per_sample needs a dim other than 0" if at == 0 else "")
        )
    shape = (len(x), nodes) if per_sample else (nodes,)
    if noise is None:
        noise = gumbel_noise(shape, dtype=log_beta.dtype, device=log_beta.device)
    elif tuple(noise.shape) != shape:
        raise ConfigError(f"noise: expected shape {shape}, received {tuple(noise.shape)}")
    place = [1] * x.ndim
    place[at] = nodes
    place[0] = len(x) if per_sample else place[0]
    return x * nested_masks(log_beta, noise).reshape(place).to(x.dtype)
