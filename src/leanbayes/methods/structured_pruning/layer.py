"""Layers with learned multiplicative noise on their input channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...kl import kl
from ...layers.operations import by_input
from ...layers.shell import StandIn
from ...posteriors.base import Posterior
from ...priors import LogUniform
from ...sampling import context, handed_over
from ...turns import check_forward
from .posterior import TruncatedLogNormal


class ChannelNoiseLayer(StandIn):
    """A Linear or convolution whose inputs, features or whole channels, are multiplied by random scales theta.

    f(x * theta / E0), with E0 the mean of theta at the start, so that the network at the means starts as the plain one.
    In training every datum has its own scales, in `predict` every sample. Weight and bias keep their names.

    scale: q(theta), one for each input channel; its ``keep`` marks the channels that are left.
    """

    scale: TruncatedLogNormal

    def __init__(self, module: nn.Module, log_std: float, low: float) -> None:
        super().__init__(module)
        weight: Any = module.weight
        width: int = module.in_features if self.operation.spatial == 0 else module.in_channels  # type: ignore[assignment]
        self.scale = TruncatedLogNormal.start((width,), log_std, low, dtype=weight.dtype, device=weight.device)
        begin = TruncatedLogNormal.start((1,), log_std, low, dtype=torch.double, device="cpu")
        self.unit = 1 / float(begin.mean.detach())
        self.prior = LogUniform()
        self.train(module.training)

    def forward(self, input: Tensor, *extra: Any, **named: Any) -> Tensor:
        """The module's operation on scaled inputs; called as the module was."""
        spatial = self.operation.spatial
        scale = self._scale(input.shape[: input.ndim - spatial])
        scaled = input * scale.reshape(*scale.shape, *(1,) * spatial).to(input.dtype)
        return self.operation.apply(self.shell, scaled, self.weight, self._parameters.get("bias"), *extra, **named)

    def _scale(self, shape: torch.Size) -> Tensor:
        q = self.scale
        check_forward(self)
        if context.mean_only:
            return q.mean * self.unit
        given = handed_over(q)
        noise = torch.rand(shape, dtype=q.dtype, device=q.device) if given is None else given
        return q.sample(noise) * self.unit

    def kl_terms(self) -> Iterator[tuple[Posterior, Callable[[], Tensor]]]:
        """The KL of the scales; weights have none."""
        yield self.scale, lambda: kl(self.scale, self.prior).sum(dtype=torch.float32)

    def value(self, name: str) -> nn.Parameter | None:
        """The parameter; a weight is multiplied by the mean scale of its input."""
        parameter = self._parameters.get(name)
        if parameter is None or name != "weight":
            return parameter
        scaled = parameter * by_input(self.shell, (self.scale.mean * self.unit).detach(), parameter.shape)
        return nn.Parameter(scaled.detach(), parameter.requires_grad)

    @property
    def drops_inputs(self) -> bool:
        """Whether channels have been pruned."""
        return self.scale.keep is not None

    def inputs_read(self, outputs: list[int]) -> list[bool] | None:
        """The channels that are left."""
        return None if self.scale.keep is None else self.scale.keep.tolist()

    def active_weights(self) -> int:
        """The weights of the channels that are left."""
        weight: Any = self._parameters["weight"]
        keep = self.scale.keep
        return weight.numel() if keep is None else int(by_input(self.shell, keep, weight.shape).sum())

    def active_parameters(self) -> int:
        """Those weights, two numbers per channel, and the bias."""
        others = sum(p.numel() for name, p in self._parameters.items() if p is not None and name != "weight")
        return self.active_weights() + others + self.scale.active_parameters()
