"""Structured Bayesian pruning (Neklyudov et al., 2017): whole channels that noise shows to be needless.

A baseline of sparse subspace VI (SBP in its table 2). What is left is a smaller dense network. The authors' code has
the same start, interval and threshold, but puts the noise of a convolution on its outputs, under a BatchNorm that is
frozen, and draws it once a batch. Here it is on the inputs of every layer, since a BatchNorm in training would undo a
scale that it normalises, and every datum has a draw of its own, which is less noise in the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...checks import module, number
from ...config import check_between
from ...errors import ConversionError
from ...method import Method
from ...registry import register

if TYPE_CHECKING:
    from torch import nn

    from ...posteriors.base import Posterior


@register
@dataclass(frozen=True)
class StructuredPruning(Method):
    """Log-normal noise on the channels (features) that enter a layer, under a log-uniform prior that prunes.

    theta = e^z, z ~ N(mu, sigma^2) cut to [low, 0]; weights stay ordinary parameters. A channel whose theta has a
    signal-to-noise ratio below 1 carries nothing: `prune_channels_` removes it.

    Args:
        log_std: where log sigma starts; mu starts at 0.
        low: the logarithm of the least scale.

    On its own it takes every Linear and convolution but the first, whose inputs are the data.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> plan = lb.bayesianize_(model, StructuredPruning())
    >>> plan.converted, plan.parameters_after - plan.parameters_before
    (['2'], 16)
    """

    summary: ClassVar[str] = "noise on whole channels; prunes those that it drowns"

    log_std: float = -5.0
    low: float = -20.0

    def __post_init__(self) -> None:
        check_between(self, "log_std", -20.0, 5.0)
        check_between(self, "low", -50.0, -1.0)

    def refuses(self, module: nn.Module) -> str | None:
        """Embeddings (their inputs are indices) and whatever has no weight."""
        from torch import nn

        from ...layers.operations import refusal

        if isinstance(module, nn.Embedding):
            return "its inputs are indices"
        if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            return "attention reads its weight without calling it, so that its inputs cannot be scaled"
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every weight layer but the first."""
        usable = [m for m in model.modules() if self.refuses(m) is None]
        return module in usable[1:] if len(usable) > 1 else module in usable

    def convert(self, module: nn.Module, memo: dict[int, Posterior]) -> nn.Module:
        """A layer that scales its inputs; the parameters are the same objects under the same names."""
        from .layer import ChannelNoiseLayer

        return ChannelNoiseLayer(module, self.log_std, self.low)


def prune_channels_(model: nn.Module, threshold: float = 1.0) -> dict[str, tuple[int, int]]:
    """Set the scales whose signal-to-noise ratio is below a threshold to exactly 0, in place, and keep them there.

    Returns how many input channels of each layer are left, and of how many. The best channel of a layer stays in any
    case, so that the network goes on computing something.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, StructuredPruning())
    >>> model[2].scale.log_std.data[:6] = 3.0  # more noise than signal
    >>> prune_channels_(model)
    {'2': (2, 8)}
    """
    from .layer import ChannelNoiseLayer

    module("model", model, error=ConversionError)
    threshold = number("threshold", threshold, at_least=0)
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, ChannelNoiseLayer)}
    if not layers:
        raise ConversionError(
            "expected a model under StructuredPruning, found none of its layers; "
            "lb.bayesianize_(model, StructuredPruning()) first"
        )
    found = {}
    for name, layer in layers.items():
        snr = layer.scale.snr().detach()
        keep = snr >= min(threshold, float(snr.max()))
        layer.scale.keep = keep
        found[name] = (int(keep.sum()), keep.numel())
    return found
