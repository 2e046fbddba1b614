"""The parameterisation of standard deviations, std = softplus(rho), and its inverse.

Softplus rather than exp: for a wide weight the step in std does not grow with std itself.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..sampling import context
from .base import check_floating

# torch's default of 20 is off by exp(-20) = 2e-9 where it turns linear, which double precision would notice.
_LINEAR_ABOVE = 40.0


def std_from_rho(rho: Tensor) -> Tensor:
    """std = softplus(rho) = log(1 + exp(rho)), elementwise.

    >>> std_from_rho(torch.tensor([-5.0, 0.0, 50.0]))
    tensor([6.7153e-03, 6.9315e-01, 5.0000e+01])
    """
    if context.scales is None or not isinstance(rho, nn.Parameter):  # another tensor may be gone, and its id reused
        return F.softplus(rho, threshold=_LINEAR_ABOVE)
    if (found := context.scales.get(id(rho))) is None:
        found = context.scales[id(rho)] = F.softplus(rho, threshold=_LINEAR_ABOVE)
    return found


def rho_from_std(std: Tensor) -> Tensor:
    """rho = log(exp(std) - 1), elementwise, for any std that the dtype can hold.

    Written as std + log(1 - exp(-std)), which neither overflows for a large std nor cancels for a small one.

    >>> std_from_rho(rho_from_std(torch.tensor([1e-12, 0.1, 1e4], dtype=torch.double)))
    tensor([1.0000e-12, 1.0000e-01, 1.0000e+04], dtype=torch.float64)
    """
    return std + torch.log(-torch.expm1(-std))


def log_std_from_rho(rho: Tensor) -> Tensor:
    """log softplus(rho), elementwise; rho itself where sigma is too small for the dtype.

    >>> log_std_from_rho(torch.tensor([-200.0, 0.0]))
    tensor([-200.0000,   -0.3665])
    """
    return torch.where(rho < -_LINEAR_ABOVE, rho, std_from_rho(rho.clamp_min(-_LINEAR_ABOVE)).log())


def rho_like(w: Tensor, std: float | Tensor) -> Tensor:
    """The rho of a std for every element of w: its shape, device, dtype and memory format.

    std: a positive number, or a tensor of them that broadcasts to the shape of w.

    >>> rho_like(torch.zeros(2, 3), 0.1).shape
    torch.Size([2, 3])
    """
    check_floating(w)
    # Half precision would lose small values in expm1; only the result is rounded to it.
    wide = torch.promote_types(w.dtype, torch.float32)
    given = torch.as_tensor(std, dtype=wide, device=w.device).detach()
    if given.is_meta:  # holds no values to look at, unless std was a number
        positive = isinstance(std, Tensor) or (std > 0 and math.isfinite(std))
    else:
        positive = bool(((given > 0) & given.isfinite()).all())
    if not positive:
        raise ConfigError(f"std: expected finite numbers above 0, received {std}; try std=0.01")
    try:
        given = given.broadcast_to(w.shape)
    except RuntimeError as error:
        raise ConfigError(
            f"std: expected a number or a tensor that broadcasts to {tuple(w.shape)}, received {tuple(given.shape)}"
        ) from error
    return torch.empty_like(w).copy_(rho_from_std(given))  # in the order of w's elements: both meet in every step


@torch.no_grad()
def scaled_rho(rho: Tensor, factor: float) -> Tensor:
    """The rho of a standard deviation that is ``factor`` times as large.

    >>> std_from_rho(scaled_rho(torch.tensor([-5.0, 0.0]), 2.0)) / std_from_rho(torch.tensor([-5.0, 0.0]))
    tensor([2.0000, 2.0000])
    """
    wide = rho.detach().double()
    small = wide < -_LINEAR_ABOVE  # log std is rho there
    return torch.where(small, wide + math.log(factor), rho_from_std(std_from_rho(wide) * factor)).to(rho.dtype)
