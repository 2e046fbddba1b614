"""Activations by name, for networks in which one can be chosen."""

from __future__ import annotations

from torch import Tensor, nn

from ..convert.channels.operations import elementwise
from ..convert.channels.rules import module_rule
from ..errors import ConfigError


class Abs(nn.Module):
    """|x|, elementwise: what follows a layer whose outputs have mean zero (variance networks, appendix D).

    A ReLU there is |x| under dropout of a half: it zeroes every neuron that happens to be negative.
    """

    def forward(self, x: Tensor) -> Tensor:
        """|x|, of the shape of x."""
        return x.abs()


module_rule(Abs)(elementwise)

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "softplus": nn.Softplus, "abs": Abs}


def activation(name: str, model: str) -> nn.Module:
    """The activation of that name; model: for the error message.

    >>> activation("softplus", "lenet5")
    Softplus(beta=1.0, threshold=20.0)
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"{model}: expected an activation of {', '.join(ACTIVATIONS)}, received {name!r}")
    return ACTIVATIONS[name]()
