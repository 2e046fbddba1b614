"""Weights at a few places of a tensor, exactly zero elsewhere: what is left of any network that has been pruned."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from .. import moved
from ..checks import whole_number
from ..errors import ArtifactError, ConfigError
from .base import Posterior, as_parameter, check_floating


class Sparse(Posterior):
    """Values ``loc`` (n,), one a slot, and ``index`` (n,), the place of each slot.

    index: int32, in the flattened tensor, in any order. shape: of the whole tensor, of which nothing else is stored.
    """

    is_sparse = True
    index: Tensor
    goal: int | None = None
    """The number of active weights after thinning, if there are more now."""

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
        """The parameters of active weights that have not been pruned."""
        each = sum(1 for _ in self.parameters())
        return each * (len(self.index) if (kept := self._kept()) is None else int(kept.sum()))

    def _kept(self) -> Tensor | None:
        return None if self.keep is None else self.keep.flatten()[self.index.long()]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if isinstance(index := state_dict.get(prefix + "index"), Tensor):
            _check_index(index, self._shape.numel(), ArtifactError, prefix + "index: ")
            if index.ndim == 1:
                self.have_slots(len(index))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @torch.no_grad()
    def take_(self, slots: Tensor) -> None:
        """Keep these slots alone, (m,); the parameters stay the same objects."""
        for p in self._parameters.values():
            if p is not None:
                p.data, p.grad = p.data[slots], None
        self.index = self.index[slots]

    def have_slots(self, count: int) -> None:
        """Change the number of active weights; their values are then set by the caller."""
        if count == len(self.index):
            return
        self.goal = None
        for p in self._parameters.values():
            if p is not None:
                p.data, p.grad = p.data.new_zeros(count), None
        self.index = self.index.new_zeros(count)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, active={len(self.index)} ({self.density:.1%})"


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
        """An empty tensor, since nothing is random."""
        return self.loc.new_empty(0)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """The values."""
        return self.mean

    def active_sample(self, noise: Tensor | None = None) -> Tensor:
        """The values, (n,)."""
        return self.active_mean()

    def snr(self) -> Tensor:
        """|loc|, so that magnitudes decide what is pruned."""
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


def __getattr__(name: str) -> Any:
    return moved.attribute(__name__, name)
