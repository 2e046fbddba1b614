"""Noise that a model draws by itself from torch's generators: ``F.dropout(x, training=True)``, ``torch.randn``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import sampling
from ..walk import parameters


class OwnNoise:
    """Makes such noise a function of (seed, sample), and tells whether there was any.

    It changes torch's generators: use it inside `leanbayes.eval_mode.undisturbed`, which restores them.
    """

    def __init__(self, model: nn.Module) -> None:
        elsewhere = {p.device for p in parameters(model) if p.device.type not in ("cpu", "meta")}
        self.devices = [d for d in elsewhere if hasattr(getattr(torch, d.type, None), "get_rng_state")]

    def reseed(self, seed: int, sample: int) -> None:
        """Start the noise of a sample."""
        key = sampling.mix(seed, -1, sample)  # sites count from 0
        if self.devices:
            torch.manual_seed(key)
        else:  # torch.manual_seed looks for other devices, which takes longer than a small layer
            torch.default_generator.manual_seed(key)

    def states(self) -> list[Tensor]:
        """The states of all generators that a forward pass may draw from."""
        modules: list[tuple[Any, torch.device]] = [(getattr(torch, d.type), d) for d in self.devices]
        return [torch.get_rng_state(), *(_state(module, device) for module, device in modules)]

    def drawn_since(self, before: list[Tensor]) -> bool:
        """Whether anything was drawn since `states` returned this."""
        return not all(map(torch.equal, before, self.states()))


def _state(module: Any, device: torch.device) -> Tensor:
    return module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
