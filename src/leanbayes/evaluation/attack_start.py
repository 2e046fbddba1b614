"""Where an attack begins: the images as pixels, the classes it aims at, a random place within reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import DataError, EvaluationError
from ..sampling import mix
from .metrics import checks

if TYPE_CHECKING:
    from .configs import Attack
    from .pixels import Pixels

_TARGET, _START = -1, -2  # keys of random numbers, apart from those of iterations


def images_of(model: nn.Module, inputs: Any, start: int) -> Tensor:
    """The inputs on the model's device, if they are images of finite numbers."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        got = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise DataError(f"attack: expected a floating-point tensor of images (N, C, H, W), received {got}")
    checks.nonempty(len(inputs), "inputs")
    checks.finite(inputs, "inputs", start)
    return inputs.detach().to(next((p.device for p in model.parameters()), inputs.device))


def clean_pixels(images: Tensor, pixels: Pixels, start: int) -> Tensor:
    """The images as pixels in [0, 1], in single precision at least: a step may be smaller than half precision sees."""
    clean = pixels.to_pixels(images.float() if images.dtype.itemsize < 4 else images)
    outside = ((clean < -0.01) | (clean > 1.01)).flatten(1).any(1)
    if bool(outside.any()):
        worst = int(outside.nonzero()[0, 0])
        raise DataError(
            f"inputs[{start + worst}]: expected pixels in [0, 1] once {pixels} is undone, received "
            f"{float(clean[worst].min()):.4g} to {float(clean[worst].max()):.4g}; give the mean and std that the "
            f"images were normalised with: Pixels(mean=(...), std=(...))"
        )
    return clean.clamp(0, 1)


def chosen_targets(probs: Tensor, labels: Tensor, config: Attack, start: int) -> Tensor:
    """Another class than the true one for each datum: by its number, or the least likely of the others."""
    classes = probs.shape[1]
    if config.target == "least_likely":
        return probs.scatter(1, labels.unsqueeze(1), 2.0).argmin(1)
    shifts = [1 + mix(config.seed, _TARGET, start + row) % (classes - 1) for row in range(len(labels))]
    return (labels + labels.new_tensor(shifts)) % classes


def given_targets(probs: Tensor, labels: Tensor, targets: Tensor, start: int) -> Tensor:
    """Classes to aim at, checked to be classes and others than the true ones."""
    _, classes = checks.classification(probs, targets, start=start)
    if bool((same := classes == labels).any()):
        row = int(same.nonzero()[0, 0])
        raise EvaluationError(f"targets[{start + row}]: expected another class than the label, received {labels[row]}")
    return classes


def random_start(clean: Tensor, reach: float, seed: int, start: int) -> Tensor:
    """Somewhere within reach of each image, uniformly, by the number of the datum."""
    each = [torch.Generator().manual_seed(mix(seed, _START, start + row)) for row in range(len(clean))]
    noise = torch.stack([torch.rand(clean.shape[1:], generator=g, dtype=clean.dtype) for g in each])
    return (clean + reach * (2 * noise - 1).to(clean.device)).clamp(0, 1)
