"""The normalisation of images: corruptions and attacks work on pixels, models on normalised inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import checks
from ..config import configurable
from ..errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


@configurable
@dataclass(frozen=True)
class Pixels:
    """The normalisation of pixels in [0, 1]: inputs = (pixels - mean) / std, per channel or the same for all channels.

    >>> import torch
    >>> pixels = Pixels(mean=(0.5,), std=(0.25,))
    >>> pixels.to_inputs(torch.tensor([[[[0.0, 1.0]]]]))
    tensor([[[[-2.,  2.]]]])
    >>> pixels.to_pixels(torch.tensor([[[[-2.0, 2.0]]]]))
    tensor([[[[0., 1.]]]])
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values: Any = vars(self)[name]
            if not isinstance(values, tuple) or not values:
                checks.refuse(f"Pixels.{name}", "a tuple of finite numbers", values)
            above = 0 if name == "std" else None
            numbers = tuple(checks.number(f"Pixels.{name}[{i}]", v, above=above) for i, v in enumerate(values))
            object.__setattr__(self, name, numbers)

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Normalise pixels (N, C, H, W) in [0, 1] to inputs of the model."""
        mean, std = self._shaped(pixels)
        return (pixels - mean) / std

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Undo the normalisation of inputs (N, C, H, W); rounding may leave pixels slightly outside [0, 1]."""
        mean, std = self._shaped(inputs)
        return inputs * std + mean

    def _shaped(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if getattr(images, "ndim", 0) != 4:
            raise DataError(f"expected images (N, C, H, W), received {checks.short(images)}")
        channels = images.shape[1]
        for name in ("mean", "std"):
            if len(vars(self)[name]) not in (1, channels):
                raise DataError(
                    f"pixels: expected a {name} for each of {channels} channels or one for all, "
                    f"received {len(vars(self)[name])}; try Pixels(mean=({'0.5, ' * channels}), std=...)"
                )
        return images.new_tensor(self.mean).view(1, -1, 1, 1), images.new_tensor(self.std).view(1, -1, 1, 1)
