"""Weights that exist at a few places of a tensor and are exactly zero elsewhere: Gaussians, or fixed values."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from ..checks import whole_number
from ..errors import ArtifactError, ConfigError
from ..sampling import draw
from .base import FactorisedGaussian, Posterior, above_zero, as_parameter, check_floating
from .gaussian import Gaussian
from .scale import rho_like, std_from_rho


class Sparse(Posterior):
    """What both kinds have: values ``loc`` (n,), one a slot, and ``index`` (n,), the place of each slot.

    index: int32, in the flattened tensor, in any order. shape: of the whole tensor, of which nothing else is stored.
    """

    is_sparse = True
    index: Tensor

    def __init__(self, loc: Tensor, index: Tensor, shape: torch.Size) -> None:
        super().__init__()
        if loc.shape != index.shape or loc.ndim != 1:
            raise ConfigError(
                f"expected loc and index of one shape (n,), received {tuple(loc.shape)} and {tuple(index.shape)}"
            )
        _check_index(index, math.prod(shape), ConfigError)
        self._shape = torch.Size(shape)
        self.loc = as_parameter(loc)
        self.register_buffer("index", index.to(torch.int32))

    @property
    def like(self) -> Tensor:
        """Of the parameters that are there; the shape is `shape`."""
        return self.loc

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def density(self) -> float:
        """The share of the tensor that is active."""
        return len(self.index) / self._shape.numel()

    def spread(self, values: Tensor) -> Tensor:
        """Values (n,) of the slots in their places of the whole tensor, zeros elsewhere."""
        whole = values.new_zeros(self._shape.numel())
        return whole.index_copy(0, self.index.long(), values).view(self._shape)

    @property
    def mean(self) -> Tensor:
        return self.masked(self.spread(self.loc))

    def places(self) -> Tensor:
        places = torch.zeros(self._shape.numel(), dtype=torch.bool, device=self.device)
        return places.index_fill(0, self.index.long(), True).view(self._shape)

    def states(self) -> tuple[int, float]:
        """A number for every active weight."""
        return self.loc.numel(), math.inf

    def active_mean(self) -> Tensor:
        """The means of the active weights, (n,)."""
        kept = self._kept()
        return self.loc if kept is None else torch.where(kept, self.loc, 0.0)

    def active_sample(self, noise: Tensor | None = None) -> Tensor:
        """A draw of the active weights, (n,)."""
        raise NotImplementedError

    def active_parameters(self) -> int:
        """The parameters of the slots whose weight has not been pruned."""
        each = sum(1 for _ in self.parameters())
        return each * (len(self.index) if (kept := self._kept()) is None else int(kept.sum()))

    def _kept(self) -> Tensor | None:
        return None if self.keep is None else self.keep.flatten()[self.index.long()]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if isinstance(index := state_dict.get(prefix + "index"), Tensor):
            _check_index(index, self._shape.numel(), ArtifactError, prefix + "index: ")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, active={len(self.index)} ({self.density:.1%})"


class SparseGaussian(Sparse, FactorisedGaussian):
    """N(loc, softplus(rho)^2) at the active places of a tensor, 0 at all others (sparse subspace VI, equation 2).

    loc, rho: (n,), one pair a slot. Nothing of the tensor's size is stored: `mean`, `std` and a draw are made when
    asked for.

    >>> q = SparseGaussian.from_tensor(torch.tensor([[0.1, -3.0], [2.0, 0.0]]), count=2, std=0.5)
    >>> q.mean.detach(), q.loc.numel()
    (tensor([[ 0., -3.],
            [ 2.,  0.]]), 2)
    """

    def __init__(self, loc: Tensor, rho: Tensor, index: Tensor, shape: torch.Size) -> None:
        super().__init__(loc, index, shape)
        if rho.shape != loc.shape:
            raise ConfigError(f"rho: expected the shape of loc, {tuple(loc.shape)}, received {tuple(rho.shape)}")
        self.rho = as_parameter(rho)

    @classmethod
    def from_tensor(
        cls, w: Tensor, count: int, std: float | Tensor = 0.01, *, requires_grad: bool | None = None
    ) -> Self:
        """Start at a pretrained tensor: its ``count`` largest magnitudes are active, with std about them.

        std: a number, or (count,) of them.
        requires_grad: of the means; None keeps that of w.
        """
        loc, index = largest(w, count, requires_grad)
        return cls(loc, rho_like(loc, std), index, w.shape)

    def active_std(self) -> Tensor:
        """The stds of the active weights, (n,)."""
        std, kept = std_from_rho(self.rho), self._kept()
        return std if kept is None else torch.where(kept, std, 0.0)

    def active(self) -> Gaussian:
        """The distribution of the active weights alone, (n,), on the same parameters."""
        q = Gaussian(self.loc, self.rho)
        q.keep = self._kept()
        return q

    @property
    def std(self) -> Tensor:
        return self.masked(self.spread(std_from_rho(self.rho)))

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Standard normals, one a slot."""
        device = self.device if generator is None else generator.device
        return torch.randn(self.loc.shape, generator=generator, device=device, dtype=self.dtype)

    def noise_kind(self) -> tuple[Any, ...] | None:
        return type(self), self.loc.shape, self.dtype, self.device

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """loc + std * noise in their places."""
        return self.masked(self.spread(self.active_sample(noise)))

    def deviation(self, noise: Tensor | None = None) -> Tensor:
        """std * noise in their places."""
        return self.masked(self.spread(std_from_rho(self.rho) * (draw(self) if noise is None else noise)))

    def active_sample(self, noise: Tensor | None = None) -> Tensor:
        """loc + std * noise, (n,)."""
        return self.active().sample(draw(self) if noise is None else noise)

    def log_prob(self, w: Tensor) -> Tensor:
        """log q(w) at the active places; 0 elsewhere, where w is not a random variable."""
        at = self.index.long()
        return self.masked(self.spread(self.active().log_prob(w.flatten()[at])))

    def entropy(self) -> Tensor:
        """log std + log(2 pi e) / 2 at the active places, 0 elsewhere."""
        return self.masked(self.spread(self.active().entropy()))

    def snr(self) -> Tensor:
        """|loc| / std at the active places, 0 elsewhere."""
        return self.masked(self.spread(self.loc.abs() / above_zero(std_from_rho(self.rho))))


class SparsePoint(Sparse):
    """Fixed values at the active places of a tensor, 0 at all others: a sparse weight that is not random.

    >>> SparsePoint.from_tensor(torch.tensor([[0.1, -3.0], [2.0, 0.0]]), count=1).mean.detach()
    tensor([[ 0., -3.],
            [ 0.,  0.]])
    """

    is_site = False

    @classmethod
    def from_tensor(cls, w: Tensor, count: int, *, requires_grad: bool | None = None) -> Self:
        """The ``count`` largest magnitudes of a tensor; requires_grad None keeps its flag."""
        return cls(*largest(w, count, requires_grad), w.shape)

    @classmethod
    @torch.no_grad()
    def of_means(cls, q: Posterior) -> Self:
        """The means of a posterior at the places that have not been pruned, in ascending order."""
        index = q.alive().flatten().nonzero().flatten()
        return cls(torch.nn.Parameter(q.mean.flatten()[index], q.like.requires_grad), index, q.shape)

    @property
    def std(self) -> Tensor:
        return self.loc.new_zeros(self._shape)

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """None needed."""
        return self.loc.new_empty(0)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """The values."""
        return self.mean

    def active_sample(self, noise: Tensor | None = None) -> Tensor:
        """The values, (n,)."""
        return self.active_mean()

    def snr(self) -> Tensor:
        """|loc|, which is all there is to rank by."""
        return self.mean.abs()


def largest(w: Tensor, count: int, requires_grad: bool | None = None) -> tuple[torch.nn.Parameter, Tensor]:
    """The ``count`` largest magnitudes of a tensor, as a parameter (count,), and their places in ascending order."""
    check_floating(w)
    whole_number("count", count, at_most=w.numel())
    flat = w.detach().flatten()
    index = flat.abs().topk(count).indices.sort().values
    return torch.nn.Parameter(flat[index], w.requires_grad if requires_grad is None else requires_grad), index


def _check_index(index: Tensor, size: int, error: type[Exception], name: str = "index: ") -> None:
    """Distinct places inside the tensor, or an error before anything is changed."""
    if index.is_meta:
        return
    if index.dtype not in (torch.int32, torch.int64):
        raise error(f"{name}expected int32, received {index.dtype}")
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise error(f"{name}expected places from 0 to {size - 1}, received {int(index.min())} to {int(index.max())}")
    if len(index.unique()) != len(index):
        raise error(f"{name}expected every place once, {len(index) - len(index.unique())} occur again")
