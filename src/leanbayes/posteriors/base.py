"""Base classes of posteriors, the distributions of one tensor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..kernels import buffers
from ..sampling import Site, draw


class Posterior(Site):
    """The distribution of one tensor, and a random site: the interface that layers, kl and predict use.

    has_mean: False where the mean is zero by construction, so that inference at the means is meaningless.
    gaussian: True where elements are independent Gaussians, so that local reparameterisation and Flipout apply.
    is_sparse: True where it has weights at some places of the tensor only (`leanbayes.posteriors.sparse`).
    scales: the parameters that set its spread, and how much each changes where log sigma changes by 1.
    elements: set by a class whose parameters have one number for each random element: the class of which such numbers,
        of any tensors, make a posterior again. It holds for that very class, not for its subclasses.
    keep: None, or a mask of `shape` after pruning: where it is False the weight is exactly 0, not a random variable.

    A subclass gives `like`, `mean`, `std`, `noise`, `sample` and `log_prob`, each `masked` where it has been pruned.
    """

    no_mean = (
        "its mean is zero by construction, and all that was learned is in the variances: there is no network at the "
        "means to extract; save the model and predict with samples"
    )
    is_sparse: bool = False
    scales: ClassVar[Mapping[str, float]] = {}
    elements: ClassVar[type[Posterior] | None] = None
    keep: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keep", None)  # a buffer once it is set: state_dict, .to() and deepcopy carry it

    @property
    def like(self) -> Tensor:
        """A parameter that has the shape, device and dtype of the tensor described."""
        raise NotImplementedError

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor described."""
        return self.like.shape

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Device of the tensor described."""
        return self.like.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the tensor described."""
        return self.like.dtype

    @property
    def mean(self) -> Tensor:
        """E[w], of that shape."""
        raise NotImplementedError

    @property
    def std(self) -> Tensor:
        """Standard deviation of w, of that shape."""
        raise NotImplementedError

    @property
    def variance(self) -> Tensor:
        """Var[w], of that shape."""
        return self.std.square()

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The random numbers one draw needs.

        With a generator they are drawn on its device, in this dtype, and the caller moves them; without, where w lives.
        """
        raise NotImplementedError

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """A reparameterised draw: a deterministic function of the parameters and the noise.

        noise: as `noise` gives it; None takes it from the sampling context, which draws afresh unless told otherwise.
        """
        raise NotImplementedError

    def log_prob(self, w: Tensor) -> Tensor:
        """log q(w), elementwise."""
        raise NotImplementedError

    def log_scale(self) -> Tensor | None:
        """The logarithm of the spread that `scales` set (log sigma, log sqrt(alpha)); None if none do."""
        return None

    def scale_noise_(self, factor: float) -> Callable[[], None] | None:
        """Multiply the spread about the mean; returns a function that undoes it, or None if there is no spread."""
        return None

    def snr(self) -> Tensor:
        """Signal to noise, |E w| / std, elementwise; pruning keeps the highest.

        Sparse subspace VI's criteria 2 and 4 both rank by this number.
        """
        return self.masked(self.mean.abs() / self.std)

    def masked(self, values: Tensor) -> Tensor:
        """values, of a shape that broadcasts to that of w, with zeros at pruned weights."""
        return values if self.keep is None else torch.where(self.keep, values, 0.0)

    def whole(self) -> Self:
        """This distribution before it was pruned: the same parameters without the mask.

        Formulas that divide by std run on it and are `masked` afterwards, so that no 0 / 0 reaches a gradient.
        """
        if self.keep is None:
            return self
        other = copy.copy(self)
        other._buffers = {**self._buffers, "keep": None}
        return other

    def places(self) -> Tensor:
        """A mask of the weights that the tensor has, pruned or not."""
        return torch.ones(self.shape, dtype=torch.bool, device=self.device)

    def alive(self) -> Tensor:
        """A mask of the weights that the tensor has and that have not been pruned."""
        return self.places() if self.keep is None else self.places() & self.keep

    def active(self) -> Posterior:
        """The distribution of what is random in it: itself, or that of the active weights of a sparse one."""
        return self

    def states(self) -> tuple[int, float]:
        """A number for every weight, of infinitely many values."""
        return math.prod(self.shape), math.inf

    def active_parameters(self) -> int:
        """The parameters behind weights not pruned; one that several weights share counts while any of them is left."""
        if self.keep is None:
            return sum(p.numel() for p in self.parameters())
        left = self.keep.long()
        return sum(int(left.sum_to_size(p.shape).count_nonzero()) for p in self.parameters())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if self.keep is None and prefix + "keep" in state_dict:  # a pruned one is loaded into one that is not yet
            self.keep = torch.ones(self.shape, dtype=torch.bool, device=self.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        pruned = "" if self.keep is None else f", pruned={int((~self.keep).sum())}"
        return f"shape={tuple(self.shape)}{pruned}"


class FactorisedGaussian(Posterior):
    """Independent Gaussians, N(mean, std^2) elementwise, for subclasses that give mean and std."""

    gaussian = True

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Standard normals of `shape`."""
        device = self.device if generator is None else generator.device
        return torch.randn(self.shape, generator=generator, device=device, dtype=self.dtype)

    def noise_kind(self) -> tuple[Any, ...] | None:
        return type(self).noise, self.shape, self.dtype, self.device  # one law, whatever class inherits it

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """mean + std * noise (Kingma & Welling, 2014, section 2.4)."""
        return self.mean + self.deviation(noise)

    def deviation(self, noise: Tensor | None = None) -> Tensor:
        """A draw minus its mean, std * noise."""
        return self.std * (draw(self) if noise is None else noise)

    def log_prob(self, w: Tensor) -> Tensor:
        """-(w - mean)^2 / (2 std^2) - log std - log(2 pi) / 2."""
        std = above_zero(self.std)
        z = (w - self.mean) / std
        return self.masked(-0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi))

    def entropy(self) -> Tensor:
        """log std + log(2 pi e) / 2, elementwise."""
        return self.masked(above_zero(self.std).log() + 0.5 * math.log(2 * math.pi * math.e))


def above_zero(std: Tensor) -> Tensor:
    """std, or the smallest normal number if it is 0, so that its logarithm and gradient are finite.

    A weight whose mean is exactly 0 has no spread under multiplicative noise; one such weight must not turn the loss
    into infinity.
    """
    return std.clamp_min(torch.finfo(std.dtype).tiny)


def product(std: Tensor, noise: Tensor) -> Tensor:
    """std * noise, of the shape of the noise, in memory that is kept if possible."""
    if noise.dtype != torch.float32 or std.dtype != torch.float32 or noise.device.type != "cpu":
        return std * noise
    return torch.mul(std, noise, out=buffers.empty(noise.shape))


def padded_shape(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """A shape with as many dimensions as ``target``, or None if it does not broadcast to it.

    >>> padded_shape((3,), (2, 3)), padded_shape((2,), (2, 3))
    ((1, 3), None)
    """
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    fits = len(padded) == len(target) and all(a in (1, b) for a, b in zip(padded, target, strict=True))
    return padded if fits else None


def as_parameter(w: Tensor) -> nn.Parameter:
    """w itself if it is a parameter, else a parameter around it."""
    return w if isinstance(w, nn.Parameter) else nn.Parameter(w)


def check_floating(w: Tensor) -> None:
    """w is a tensor of real numbers, so that a density over it makes sense."""
    if not w.is_floating_point():
        raise ConfigError(f"expected a floating-point tensor, received {w.dtype}; convert it with .float()")


def mean_parameter(w: Tensor, requires_grad: bool | None) -> nn.Parameter:
    """A copy of w as the parameter of a mean, with its device and dtype; requires_grad None keeps its flag too."""
    check_floating(w)
    return nn.Parameter(w.detach().clone(), w.requires_grad if requires_grad is None else requires_grad)


def exchanged(values: Mapping[nn.Parameter, Tensor]) -> Callable[[], None]:
    """Give parameters these values; returns a function that puts back those that they had."""
    before = {p: p.detach().clone() for p in values}

    def put_back() -> None:
        _assign(before)

    _assign(values)
    return put_back


@torch.no_grad()
def _assign(values: Mapping[nn.Parameter, Tensor]) -> None:
    for p, value in values.items():
        p.copy_(value)
