"""Computing only the channels of a width: producers and consumers of ordered channels use the front of their weights.

A mask costs as much as the whole layer. If the width of a pass is known before it runs, the producer computes only the
channels that are kept, and the consumer reads as many columns of its weight. All parts are views of the same tensors,
and the dropped part gets a gradient of 0, as under a mask. BatchNorm statistics of dropped channels do not change.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...convert.channels import Use
from ...layers.contract import BayesianLayer, features, option, original
from ...ordering.unit import OrderingUnit


class Narrowing(BayesianLayer):
    """Base class of layers that compute a part of their channels; narrow says which part, or is None."""

    narrow: Narrow | None = None


class Narrow:
    """The part of a module that a pass computes: the first outputs from the first inputs.

    A plain layer or BatchNorm gets the first part of its parameters and statistics during a call; layers of
    `leanbayes.methods.nested.layer` call `part`.
    """

    def __init__(self) -> None:
        self.outputs: tuple[OrderingUnit, Use] | None = None
        self.inputs: tuple[OrderingUnit, Use] | None = None
        self.whole: list[tuple[dict[str, Any], str, Any]] = []

    def part(self, weight: Any, bias: Any) -> tuple[Any, Any]:
        """The part in use of a weight (outputs, inputs, ...) and a bias (outputs,)."""
        out, into = (None if at is None else _features(*at) for at in (self.outputs, self.inputs))
        if out is not None:
            weight, bias = weight[:out], None if bias is None else bias[:out]
        return weight if into is None else weight[:, :into], bias

    def before(self, module: nn.Module, args: Any) -> None:
        """Replace parameters and statistics by the part in use."""
        self.after(module, args, None)  # in case an earlier call failed
        values: Any = module._parameters
        if not isinstance(module, _BatchNorm):
            self._use(values, dict(zip(("weight", "bias"), self.part(values["weight"], values["bias"]), strict=True)))
            return
        assert self.outputs is not None
        count = _features(*self.outputs)
        for values in (module._parameters, module._buffers):
            self._use(values, {n: v[:count] for n, v in values.items() if v is not None and v.ndim})

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Restore the whole tensors."""
        while self.whole:
            values, name, value = self.whole.pop()
            values[name] = value

    def _use(self, values: dict[str, Any], parts: dict[str, Any]) -> None:
        for name, part in parts.items():
            self.whole.append((values, name, values[name]))
            values[name] = part


def can_narrow(model: nn.Module, unit: OrderingUnit) -> bool:
    """Whether dropped channels of a unit can be left out of the computation: no layer has other channels beside them.

    Grouped and transposed convolutions, several producers, concatenations, and layers between that are neither
    BatchNorm nor elementwise need masks.
    """
    group = unit.group
    if unit.legacy or len(group.producers) != 1 or list(unit.steps.of) != sorted(unit.steps.of):
        return False
    pairs = [(use, "inputs") for use in group.consumers] + [(use, "outputs") for use in group.producers]
    return all(_is_front(model, unit, use, side) for use, side in pairs) and all(
        use.offset == 0 and isinstance(model.get_submodule(use.module), _BatchNorm) for use in group.through
    )


def _is_front(model: nn.Module, unit: OrderingUnit, use: Use, side: str) -> bool:
    module = model.get_submodule(use.module)
    shell: Any = original(module)
    if not isinstance(module, Narrowing) and shell is not module:
        return False  # another method's layer
    if not isinstance(shell, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) or (option(shell, "groups") or 1) > 1:
        return False
    return use.offset == 0 and features(module, side) == unit.group.size * use.block


def _features(unit: OrderingUnit, use: Use) -> int | None:
    nodes = unit.known_nodes()
    return None if nodes is None else len(unit.kept_channels(nodes)) * use.block
