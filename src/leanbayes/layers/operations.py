"""The operations a random weight can stand in, as pure functions of (options, input, weight, bias).

Each is linear in the weight, which is all that local reparameterisation and Flipout need. The options (stride, padding,
padding mode, groups, ...) are read from the *shell*: the module that was replaced, without its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..kernels import convolution

Apply = Callable[..., Tensor]


@dataclass(frozen=True)
class Operation:
    """How a kind of module uses its weight.

    apply: (shell, x, weight, bias, *extra) -> output, the module's own arithmetic.
    spatial: number of trailing dimensions that share one weight; -1 where inputs are indices.
    """

    apply: Apply
    spatial: int


def _linear(shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _conv(shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if (done := convolution.of_samples(shell, x, weight, bias)) is not None:
        return done
    # torch's own helper: it knows padding modes and padding="same", and gives the module's result bit for bit
    return shell._conv_forward(x, weight, bias)


def _conv_transpose(
    shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None
) -> Tensor:
    nd = len(shell.kernel_size)
    padding = shell._output_padding(x, output_size, shell.stride, shell.padding, shell.kernel_size, nd, shell.dilation)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[nd - 1]
    return function(x, weight, bias, shell.stride, shell.padding, padding, shell.groups, shell.dilation)


def _embedding(shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.embedding(x, weight, shell.padding_idx, scale_grad_by_freq=shell.scale_grad_by_freq)


def _transposed(shell: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.mT, bias)


_OPERATIONS: dict[type[nn.Module], Operation] = {
    nn.Linear: Operation(_linear, 0),
    nn.Embedding: Operation(_embedding, -1),
    **{c: Operation(_conv, n) for n, c in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), 1)},
    **{
        c: Operation(_conv_transpose, n)
        for n, c in enumerate((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), 1)
    },
}
WEIGHT_LAYERS: tuple[type[nn.Module], ...] = tuple(_OPERATIONS)


_TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")
"""A Linear with its weight the other way round, of GPT-2 and its kin; told by name, since transformers is optional."""


def _kind(module: nn.Module) -> type[nn.Module] | None:
    """The class whose operation a module has."""
    own = type(module)
    if (own.__module__, own.__name__) == _TRANSPOSED:
        _OPERATIONS.setdefault(own, Operation(_transposed, 0))
    return next((c for c in _OPERATIONS if isinstance(module, c)), None)


def operation_of(module: nn.Module) -> Operation:
    """The operation of a module that `refusal` accepts."""
    kind = _kind(module)
    assert kind is not None
    return _OPERATIONS[kind]


def refusal(module: nn.Module) -> str | None:
    """Why a module's weight cannot be random, or None if it can.

    >>> refusal(nn.Linear(2, 3)) is None
    True
    >>> refusal(nn.LSTM(2, 3))
    'no operation for LSTM'
    """
    kind = _kind(module)
    if isinstance(module, nn.MultiheadAttention):
        return (
            "queries, keys and values of MultiheadAttention are projected inside of torch; only its out_proj is a layer"
        )
    if kind is None:
        return f"no operation for {type(module).__name__}"
    if (why := unusual(module, kind)) is not None:
        return why
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "it has no weight parameter (weight norm by hook, or removed)"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "max_norm rewrites the weight in place"
    if isinstance(module, nn.Embedding) and module.sparse:
        return "sparse gradients have no variance path"
    if not module._parameters["weight"].is_floating_point():  # type: ignore[union-attr]
        return "its weight is not floating point"
    if module._modules or module._buffers:
        return "it has submodules or buffers of its own, which a stand-in would lose"
    return None


def by_input(shell: Any, values: Tensor, shape: torch.Size) -> Tensor:
    """A value for each input of a Linear or convolution, (inputs,), broadcast to the shape of its weight.

    >>> by_input(nn.Linear(2, 3), torch.tensor([1.0, 2.0]), torch.Size((3, 2)))[0]
    tensor([1., 2.])
    """
    if not isinstance(shell, nn.Linear):
        tail = (1,) * (len(shape) - 2)
        if shell.transposed:
            values = values.view(-1, 1, *tail)
        else:
            values = values.view(shell.groups, -1).repeat_interleave(shape[0] // shell.groups, 0)
            values = values.view(*values.shape, *tail)
    return values.expand(shape)


def why_not_sparse(module: nn.Module) -> str | None:
    """Why a module's weight cannot be sparse, or None if it can."""
    if (why := refusal(module)) is not None:
        return why
    if not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return f"sparse weights are for Linear and convolutions, not {type(module).__name__}"
    return None


def unusual(module: nn.Module, kind: type[nn.Module]) -> str | None:
    """Why a module of a kind may not compute as its kind does, or None.

    >>> unusual(nn.LazyLinear(3), nn.Linear)
    'its shape is not known yet (run one batch through the lazy module first)'
    """
    if parametrize.is_parametrized(module):
        return "its weight is parametrised (remove the parametrisation first)"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "its shape is not known yet (run one batch through the lazy module first)"
    if type(module).forward is not kind.forward or "forward" in module.__dict__:
        return f"{type(module).__name__} has a forward of its own"
    return None
