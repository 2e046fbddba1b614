"""Dropout as a random site: a mask a datum in training, one mask a sample (a whole network) in `predict`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PredictionError
from ..sampling import context, draw
from .shell import StandIn


class DropoutMask(nn.Module):
    """Multiplies features, or whole channels, by Bernoulli(1 - rate) / (1 - rate).

    spatial: how many trailing dimensions share one mask value (0 for features, 2 for the channels of an image).
    features: the shape of one mask without the batch dimension; None where only an input tells.

    Under ``mean_only`` it is the identity, since the mask has mean one. Otherwise it is always on: a draw of a Bayesian
    network does not depend on train() and eval().
    """

    is_site = True
    anchor: Tensor

    def __init__(self, rate: float, spatial: int = 0, features: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.rate, self.spatial, self.features = rate, spatial, features
        self.learns_shape = features is None
        self.register_buffer("anchor", torch.empty(0), persistent=False)  # knows the device: it follows .to()

    @property
    def device(self) -> torch.device:
        """Where the mask is needed."""
        return self.anchor.device

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """One mask for a whole sample, of shape ``features``."""
        if self.features is None:
            raise PredictionError("this dropout layer has not seen an input yet; run one batch through the model first")
        keep = torch.empty(self.features, device="cpu" if generator else self.device)
        return keep.bernoulli_(1 - self.rate, generator=generator) / (1 - self.rate)

    def forward(self, x: Tensor) -> Tensor:
        """x times its mask, shapes unchanged."""
        shape = (*x.shape[: x.ndim - self.spatial], *(1,) * self.spatial)
        if self.learns_shape and context.draws is None:
            self.features = shape[1:]
        if context.mean_only or self.rate == 0:
            return x
        if context.draws is not None and id(self) in context.draws:
            return x * draw(self).to(x.dtype)
        keep = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        return x * (keep / (1 - self.rate))

    def extra_repr(self) -> str:
        """The rate and what is dropped together."""
        return f"rate={self.rate}, spatial={self.spatial}"


class DropoutAlways(DropoutMask):
    """A model's own `nn.Dropout`, kept on when sampling."""

    is_bayes_layer = True
    shell: nn.Module

    def __init__(self, module: nn.Module, rate: float) -> None:
        super().__init__(rate, spatial_of(module))
        object.__setattr__(self, "shell", module)

    def restored(self) -> nn.Module:
        """The module it replaced."""
        return copy.copy(self.shell)


class DropoutLayer(StandIn):
    """A Linear or convolution that drops its inputs; its parameters keep their names.

    Dropping input j sets column j of the weight to zero: a two-point posterior on whole columns (Gal and
    Ghahramani, 2016).
    """

    def __init__(self, module: nn.Module, rate: float) -> None:
        super().__init__(module)
        spatial = self.operation.spatial
        width: int = module.in_features if spatial == 0 else module.in_channels  # type: ignore[assignment]
        self.mask = DropoutMask(rate, spatial, (width, *(1,) * spatial))
        self.train(module.training)

    def forward(self, x: Tensor, *extra: Any) -> Tensor:
        """The module's operation on masked inputs."""
        return self.operation.apply(self.shell, self.mask(x), self.weight, self._parameters.get("bias"), *extra)


OWN_DROPOUT: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def spatial_of(module: nn.Module) -> int:
    """How many trailing dimensions a torch dropout module drops together."""
    return next(spatial for kind, spatial in OWN_DROPOUT.items() if isinstance(module, kind))
