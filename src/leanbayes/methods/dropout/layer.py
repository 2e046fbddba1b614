"""Dropout as a random site: a mask a datum in training, one mask a sample (a whole network) in `predict`."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import PredictionError
from ...layers.contract import BayesianLayer
from ...layers.shell import StandIn
from ...posteriors.base import padded_shape
from ...sampling import Site, context, draw
from ...turns import check_forward


class DropoutMask(Site):
    """Multiplies features, or whole channels, by Bernoulli(1 - rate) / (1 - rate), in train and in eval mode.

    spatial: how many trailing dimensions share one mask value (0 for features, 2 for the channels of an image).
    features: the shape of one mask without the batch dimension; None if only an input tells. `predict` then lets the
        module see one first (`leanbayes.sampling.watching`); a module that is called several times in a pass has one
        mask for each shape.

    Under ``mean_only`` it is the identity, since the mask has mean one.
    """

    device = torch.device("cpu")  # masks are small, and are moved to their input

    def __init__(self, rate: float, spatial: int = 0, features: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.rate, self.spatial = rate, spatial
        self.learns_shape = features is None
        self.shapes = [] if features is None else [features]

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """The masks of one sample, those of all shapes in one row."""
        keep = torch.empty(sum(map(math.prod, self.shapes)))
        return keep.bernoulli_(1 - self.rate, generator=generator) / (1 - self.rate)

    def states(self) -> tuple[int, float]:
        """Zero or one for every value of the masks."""
        count = sum(map(math.prod, self.shapes))
        return count, count * math.log10(2) if self.rate else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """x times its mask, shapes unchanged."""
        check_forward(self)
        if context.mean_only or self.rate == 0:
            return x
        shape = (*x.shape[: x.ndim - self.spatial], *(1,) * self.spatial)
        if context.watch is not None:
            context.watch(self)
            if self.learns_shape and shape[1:] not in self.shapes:
                self.shapes.append(shape[1:])
        if context.draws is not None and id(self) in context.draws:
            return x * self._mask(draw(self), shape[1:]).to(device=x.device, dtype=x.dtype)
        keep = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        return x * (keep / (1 - self.rate))

    def _mask(self, masks: Tensor, wanted: tuple[int, ...]) -> Tensor:
        """The mask for inputs of this shape, or one that broadcasts to it if the batch is not dimension 0."""
        known = self.shapes
        if not self.learns_shape:
            return masks.reshape(known[0])
        found = wanted if wanted in known else next((s for s in known if padded_shape(s, wanted) is not None), None)
        if found is None:
            raise PredictionError(
                f"dropout: expected features of a shape that one datum of the batch had ({known}), received {wanted}; "
                'the shapes inside this model depend on the batch: use predict(..., estimator="local")'
            )
        start = sum(map(math.prod, known[: known.index(found)]))
        return masks[start : start + math.prod(found)].reshape(found)

    def extra_repr(self) -> str:
        """The rate and what is dropped together."""
        return f"rate={self.rate}, spatial={self.spatial}"


class DropoutAlways(DropoutMask, BayesianLayer):
    """An `nn.Dropout` of the model that stays on when sampling."""

    def scale_noise_(self, factor: float) -> Callable[[], None] | None:
        return _scaled_rate(self, self, factor)

    def __init__(self, module: nn.Module, rate: float) -> None:
        super().__init__(rate, spatial_of(module))
        self.given_rate = rate
        object.__setattr__(self, "shell", copy.copy(module))
        self.training = module.training

    def restored(self) -> nn.Module:
        """The module it replaced."""
        plain = copy.copy(self.shell)
        plain.training = self.training
        return plain


class DropoutLayer(StandIn):
    """A Linear or convolution that drops its inputs; its parameters keep their names.

    Dropping input j sets column j of the weight to zero: a two-point posterior on columns (Gal and Ghahramani, 2016).
    """

    def __init__(self, module: nn.Module, rate: float) -> None:
        super().__init__(module)
        spatial = self.operation.spatial
        width: int = module.in_features if spatial == 0 else module.in_channels  # type: ignore[assignment]
        self.mask = DropoutMask(rate, spatial, (width, *(1,) * spatial))
        self.given_rate = rate
        self.train(module.training)

    def scale_noise_(self, factor: float) -> Callable[[], None] | None:
        return _scaled_rate(self, self.mask, factor)

    def forward(self, input: Tensor, *extra: Any, **named: Any) -> Tensor:
        """The module's operation on masked inputs; called as the module was."""
        bias = self._parameters.get("bias")
        return self.operation.apply(self.shell, self.mask(input), self.weight, bias, *extra, **named)


OWN_DROPOUT: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def spatial_of(module: nn.Module) -> int:
    """How many trailing dimensions a torch dropout module drops together."""
    return next(spatial for kind, spatial in OWN_DROPOUT.items() if isinstance(module, kind))


def _scaled_rate(layer: DropoutAlways | DropoutLayer, mask: DropoutMask, factor: float) -> Callable[[], None] | None:
    """Change the rate of a mask so that its standard deviation, sqrt(rate / (1 - rate)), is ``factor`` times as large.

    The method of the layer stores the rate; a part of an ensemble has no method, and keeps its rate. The rate is
    computed from the one given, so that factors whose product is 1 lead back to it to the last bit.
    """
    before = layer.method, mask.rate, layer.noise_scale
    if layer.method is None or mask.rate == 0:
        return None
    layer.noise_scale *= factor
    odds = layer.noise_scale**2 * layer.given_rate / (1 - layer.given_rate)
    mask.rate = layer.given_rate if layer.noise_scale == 1 else odds / (1 + odds)
    layer.method = dataclasses.replace(layer.method, rate=mask.rate)  # type: ignore[call-arg]

    def put_back() -> None:
        layer.method, mask.rate, layer.noise_scale = before

    return put_back
