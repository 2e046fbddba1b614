"""Warnings about weights that cannot learn: kernels larger than the images, and parameters without a gradient."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.module import register_module_forward_pre_hook

from ..errors import LeanBayesWarning
from ..layers.contract import BayesianLayer, original
from ..walk import compiled

STEPS = 20
"""Number of steps after which parameters are reported whose gradient was always zero."""
_NAMED = 3  # layers that a message lists


class Unused:
    """Watches the first steps of a run and warns once of weights that cannot learn.

    trained: the parameters of the optimiser by name.
    """

    def __init__(self, model: nn.Module, trained: Mapping[str, Tensor]) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        # members of an ensemble wait for their turn
        rests = any(isinstance(m, BayesianLayer) and m.resting_members for m in self.names)
        self.waiting = {} if rests else dict(trained)
        self.steps = 0
        self.compiled = compiled(model)

    @contextlib.contextmanager
    def shapes(self) -> Iterator[None]:
        """Record the sizes of the inputs of convolutions, in the first step only."""
        if self.steps or self.compiled:
            yield
            return
        seen: dict[nn.Module, tuple[tuple[int, ...], float]] = {}

        def look(module: nn.Module, args: Any) -> None:
            shell = original(module)
            # the shell of a converted layer may be called by it: count the layer
            if module not in self.names or not isinstance(shell, _ConvNd) or isinstance(shell, _ConvTransposeNd):
                return
            if not (args and isinstance(args[0], Tensor)):
                return
            size = tuple(args[0].shape[-len(shell.kernel_size) :])
            share = share_in_reach(shell, size)
            if module not in seen or share > seen[module][1]:
                seen[module] = size, share

        handle = register_module_forward_pre_hook(look)
        try:
            yield
        finally:
            handle.remove()
        self._tell_out_of_reach({module: found for module, found in seen.items() if found[1] <= 0.5})

    def gradients(self) -> None:
        """Record which parameters have had a gradient."""
        if self.waiting and self.steps < STEPS:
            # a parameter that a callback has frozen is meant not to learn
            waiting = {name: p for name, p in self.waiting.items() if p.requires_grad}
            self.waiting = {name: p for name, p in waiting.items() if p.grad is None or not bool(p.grad.any())}
        self.steps += 1
        if self.steps == STEPS and self.waiting:
            names = list(self.waiting)
            _warn(
                f"{_listed(names)}: the gradient was zero or absent in all of the first {STEPS} steps, so that these "
                "parameters do not learn; use them in forward, or freeze them with requires_grad_(False)"
            )

    def _tell_out_of_reach(self, found: Mapping[nn.Module, tuple[tuple[int, ...], float]]) -> None:
        if not found:
            return
        lost = sum(round((1 - share) * _weights(module)) for module, (_, share) in found.items())
        whole = sum(map(_weights, self.names))
        first, (size, share) = next(iter(found.items()))
        kernel: Any = original(first).kernel_size
        _warn(
            f"{_listed([self.names[m] for m in found])}: {lost / whole:.0%} of the model's weights can never learn, "
            f"since they meet nothing but padding (the {_by(kernel)} kernel of {self.names[first]} sees images of "
            f"{_by(size)}, which leaves it {share:.0%} of its weights); use a network for images of this size, such as "
            "leanbayes.models.resnet18_cifar for 32x32, or larger images"
        )


def share_in_reach(conv: _ConvNd, size: tuple[int, ...]) -> float:
    """The share of a convolution's weights that meet an input at some position, for inputs of a size.

    >>> share_in_reach(nn.Conv2d(1, 1, 3, padding=1), (1, 1)) == 1 / 9
    True
    >>> share_in_reach(nn.Conv2d(1, 1, 3, padding=1), (2, 2))
    1.0
    """
    if conv.padding_mode != "zeros":  # the border is made of inputs
        return 1.0
    share = 1.0
    for dim, length in enumerate(size):
        kernel, stride, dilation = conv.kernel_size[dim], conv.stride[dim], conv.dilation[dim]
        if isinstance(conv.padding, str):
            around = dilation * (kernel - 1) if conv.padding == "same" else 0
            before = around // 2
        else:
            before, around = conv.padding[dim], 2 * conv.padding[dim]
        outputs = (length + around - dilation * (kernel - 1) - 1) // stride + 1
        if outputs < 1:
            return 1.0  # the convolution itself will say that this does not fit
        meets = [
            any(0 <= out * stride - before + tap * dilation < length for out in range(outputs)) for tap in range(kernel)
        ]
        share *= sum(meets) / kernel
    return share


def _weights(module: nn.Module) -> int:
    """The number of weights that a layer itself holds, active or not."""
    if isinstance(module, BayesianLayer) and (q := module.posterior("weight")) is not None:
        return math.prod(q.shape)
    weight = module._parameters.get("weight")
    return weight.numel() if weight is not None and weight.ndim > 1 else 0


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _warn(text: str) -> None:
    warnings.warn(text, LeanBayesWarning, stacklevel=2)
