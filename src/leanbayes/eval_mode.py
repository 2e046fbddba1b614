"""Running a model without changing it: modes, random generators and buffers are put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from .turns import Turn
from .walk import modules, parameters


@contextlib.contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Run a block, then put every module back into its own mode (train or eval; frozen BatchNorm stays frozen)."""
    modes = [(module, module.training) for module in modules(model)]
    try:
        yield
    finally:
        for module, training in modes:
            if module.training is not training:  # setting an attribute of a module takes a while
                module.training = training


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Run a block, then put the values of all buffers back."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Run a block without torch's fast path for attention.

    It reads the weights of the modules inside a transformer layer without calling them, so that dropout would be
    skipped; vmap cannot vectorise it, and nothing inside it can be counted.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a block in evaluation mode without gradients; modes and torch's random state are as before when it ends.

    Modes, random state and the fast path are the process's: threads take turns.

    >>> model = nn.Linear(2, 2)
    >>> with undisturbed(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    devices = {p.device for p in parameters(model) if p.device.type not in ("cpu", "meta")}
    kind = next((device.type for device in devices), "cuda")
    fork = torch.random.fork_rng(devices, device_type=kind)
    with Turn(model=model), kept_modes(model), fork, torch.no_grad(), plain_attention():
        if any(module.training for module in modules(model)):
            model.eval()
        yield
