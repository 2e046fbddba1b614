"""Pictures to corrupt."""

from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]


def scenes(count, channels, height, width, seed=0):
    """Pictures with the spectrum of photographs (power falls as f^-2), in [0.05, 0.95]."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    field = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(count, channels, height, width))) / frequency, (height, width))
    field = field + 2 * field.mean(1, keepdims=True)  # channels go together
    low, high = field.min((1, 2, 3), keepdims=True), field.max((1, 2, 3), keepdims=True)
    return torch.from_numpy(0.05 + 0.9 * (field - low) / (high - low)).float()


def dice(count=1, seed=0):
    return [np.random.default_rng((seed, i)) for i in range(count)]
