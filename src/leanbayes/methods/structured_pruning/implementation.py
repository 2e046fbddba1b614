"""The implementation of `StructuredPruning`, and `prune_channels_`."""

from __future__ import annotations

from typing import Any

from torch import nn

from ... import checks
from ...convert.conversion import Conversion
from ...convert.implementation import Implementation, implements
from ...errors import ConversionError
from ...layers.operations import refusal
from .config import StructuredPruning
from .layer import ChannelNoiseLayer


@implements(StructuredPruning)
class _StructuredPruning(Implementation[StructuredPruning]):
    def reason_unsupported(self, module: nn.Module) -> str | None:
        """For embeddings (their inputs are indices) and whatever has no weight."""
        if isinstance(module, nn.Embedding):
            return "its inputs are indices"
        if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            return "attention reads its weight without calling it, so that its inputs cannot be scaled"
        return refusal(module)

    def selects(self, module: nn.Module, model: nn.Module) -> bool:
        """Every weight layer except the first."""
        usable = [m for m in model.modules() if self.reason_unsupported(m) is None]
        return module in usable[1:] if len(usable) > 1 else module in usable

    def convert(self, module: nn.Module, conversion: Conversion) -> ChannelNoiseLayer:
        """A layer that scales its inputs, with the same parameters under the same names."""
        return ChannelNoiseLayer(module, self.config.log_std, self.config.low)


def prune_channels_(model: nn.Module, threshold: float = 1.0) -> dict[str, tuple[int, int]]:
    """Set the scales whose signal-to-noise ratio is below a threshold to exactly 0, in place and for good.

    Returns how many input channels of each layer are left, and of how many. The best channel of a layer always stays.

    >>> from torch import nn
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, StructuredPruning())
    >>> model[2].scale.log_std.data[:6] = 3.0  # more noise than signal
    >>> prune_channels_(model)
    {'2': (2, 8)}
    """
    checks.module("model", model, error=ConversionError)
    threshold = checks.number("threshold", threshold, at_least=0)
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
