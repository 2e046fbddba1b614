"""Options that several networks have: activations by name, sizes, and the start of convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from ..checks import one_of, whole_number
from ..convert.channels.operations import elementwise
from ..convert.channels.rules import module_rule


class Abs(nn.Module):
    """|x|, elementwise: an activation for layers whose outputs have mean zero (variance networks, appendix D).

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
    return ACTIVATIONS[one_of(f"{model}.activation", name, ACTIVATIONS)]()


MOST = 2**31 - 1
"""The largest size of a layer: more than any machine holds, and still a number that torch can read."""


def check_sizes(model: str, **sizes: int) -> None:
    """Refuse sizes of a network that are not whole numbers of at least 1; model: its name.

    >>> check_sizes("resnet18", num_classes=0)
    Traceback (most recent call last):
    leanbayes.errors.ConfigError: resnet18.num_classes: expected a whole number of at least 1, received 0
    """
    for name, size in sizes.items():
        whole_number(f"{model}.{name}", whole_number(f"{model}.{name}", size), at_most=MOST)


def check_image_size(model: str, size: int, at_least: int) -> None:
    """Refuse images that are too small for a network."""
    whole_number(f"{model}.image_size", size, at_least=at_least, hint="pad or enlarge the images")


def kaiming_(model: nn.Module) -> None:
    """Draw the weights of all convolutions from N(0, 2 / fan-out) (He et al., 2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
