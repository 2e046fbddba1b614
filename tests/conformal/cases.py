"""Predictions and targets that the tests of conformal prediction share."""

import torch


def case(rows=600, classes=5, seed=0, scale=2.0):
    """Logits, and labels drawn from their softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


def forecasts(rows=300, seed=7):
    """Means, standard deviations and targets whose noise is twice what the model believes."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(rows, generator=generator)
    std = 0.2 + 0.3 * torch.rand(rows, generator=generator)
    return mean, std, mean + 2 * std * torch.randn(rows, generator=generator)


def _part(spread, rows):
    return tuple(part[rows] for part in spread) if isinstance(spread, tuple) else spread[rows]
