"""Local reparameterisation at the nonzeros: y = sum mu x + sqrt(sum sigma^2 x^2) eps, and its gradients.

On blocks of activations, without history; `operation` is what autograd sees.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..errors import DataError
from .buffers import empty
from .checks import expect, side_by_side
from .geometry import LANES
from .library import call
from .plan import Plan

MEAN, NOISE, GIVEN = range(3)


def both(
    x: Tensor, mu: Tensor, sigma: Tensor | None, bias: Tensor | None, plan: Plan, noise: Tensor | int, batch: int
) -> tuple[Tensor, Tensor]:
    """The output, and eps / (2 sqrt(variance)), which is all that the backward pass needs of the noise; no history."""
    seed, given = (noise, None) if isinstance(noise, int) else (0, noise)
    order = plan.forward
    return _run(x, mu, sigma, bias, given, (order.rows, order.offsets, order.slots), plan.numbers(batch), seed)


def _run(
    x: Tensor,
    mu: Tensor,
    sigma: Tensor | None,
    bias: Tensor | None,
    noise: Tensor | None,
    order: tuple[Tensor, ...],
    geometry: list[int],
    seed: int,
) -> tuple[Tensor, Tensor]:
    _check(x, mu, sigma, geometry, order)
    shape = _out_shape(x, geometry)
    if bias is not None:
        expect(bias, (geometry[0],), "a bias")
    if noise is not None:
        expect(noise, shape, "noise")
    y, slope = empty(shape), empty((0,) if sigma is None else shape)
    mode = MEAN if sigma is None else NOISE if noise is None else GIVEN
    values = [None if t is None else side_by_side(t) for t in (mu, sigma, bias, x, None if mode == MEAN else noise)]
    call("leanbayes_forward", geometry, *order, *values, y, slope, seed, mode)
    return y, slope


def _check(x: Tensor, mu: Tensor, sigma: Tensor | None, geometry: list[int], order: Sequence[Tensor]) -> None:
    """Refuse activations and parameters that are not those of the plan."""
    if len(geometry) != 15 or min(geometry[:7]) < 1 or min(geometry[9:13]) < 1:
        raise DataError(f"expected the 15 numbers of a plan, received {geometry}; take them from Plan.numbers")
    inputs, batch, positions = geometry[1], geometry[13], geometry[9] * geometry[10]
    expected = (-(-batch // LANES), positions, inputs, LANES)
    if x.shape != expected:
        found = f"{x.shape[2]} at {x.shape[1]}" if x.dim() == 4 else f"a tensor of {x.dim()} dimensions"
        raise DataError(
            f"expected activations of {inputs} channels (or features) at {positions} positions, in blocks {expected} "
            f"of a batch of {batch}, received {found}, {tuple(x.shape)}; check the shape of the input"
        )
    nonzeros = (order[2].shape[0],)
    expect(mu, nonzeros, "means of the nonzeros that the plan was made for")
    if sigma is not None:
        expect(sigma, nonzeros, "standard deviations of the nonzeros that the plan was made for")


def _out_shape(x: Tensor, geometry: list[int]) -> tuple[int, int, int, int]:
    return x.shape[0], geometry[11] * geometry[12], geometry[0], LANES


def gradients(
    grad: Tensor,
    x: Tensor,
    mu: Tensor,
    sigma: Tensor | None,
    slope: Tensor,
    order: Sequence[Tensor],
    geometry: list[int],
    wants: Sequence[bool],
    out: Tensor | None = None,
    y: Tensor | None = None,
    line: Tensor | None = None,
    rectified: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, mu, sigma and bias, an empty tensor where none is wanted (x, mu with sigma, bias).

    out, y, line, rectified: what stands between the output and where ``grad`` comes from, see upstream in kernels.c.
    """
    _check(x, mu, sigma, geometry, order)
    shape = _out_shape(x, geometry)
    for given, what in ((grad, "a gradient"), (out, "a final output"), (y, "an output")):
        if given is not None:
            expect(given, shape, what)
    if sigma is not None:
        expect(slope, shape, "a slope")
    wanted = (wants[0], wants[1], wants[1] and sigma is not None, wants[2])
    likes = zip(wanted, (x.shape, mu.shape, mu.shape, (geometry[0],)), strict=True)
    found = [empty(shape if want else (0,)) for want, shape in likes]
    values = [None if t is None else side_by_side(t) for t in (mu, sigma, x, grad, out, y, slope, line)]
    outs = [t if want else None for want, t in zip(wanted, found, strict=True)]
    call("leanbayes_backward", geometry, *order, *values, int(rectified), *outs)
    return found[0], found[1], found[2], found[3]
