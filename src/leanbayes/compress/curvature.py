"""The diagonal of the loss's Hessian in the weights of one random layer, at the posterior means.

The loss is the negative log-likelihood summed over data, L(W) = -sum_n log p(y_n | x_n, W), every other random weight
at its mean and the network in eval mode, so that data do not see each other.

| method | what it computes | cost |
| --- | --- | --- |
| exact, Linear | sum_n a_ni^2 d2l_n/db_nj^2, b = W a | a product with the Hessian of the tail per output |
| exact, others | e_i' H e_i for every weight | a product with the Hessian of the network per weight |
| gauss-newton | sum_n sum_k lambda_nk (J_n' u_nk)_i^2, (lambda, u) of d2l_n/df_n^2 | a gradient per datum and output |
| hutchinson | gauss-newton + mean of v * (H v - G v), v random signs | two such products per probe |

Gauss-Newton leaves out the curvature of the network itself. That is zero almost everywhere where all that follows the
layer is piecewise linear (ReLU, |.|, max-pooling, BatchNorm in eval mode), and there it is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp, vmap
from torch.utils.hooks import RemovableHandle

from .. import batches
from ..layers.bayes import BayesLayer
from ..likelihoods import Likelihood

Shift = dict[str, Tensor]
_AT_ONCE = 2**23  # numbers in the largest tensor of a chunk: 32 MB in single precision
_FEW = 100  # outputs up to which a gradient for each of them is cheaper than enough probes


@dataclass(frozen=True)
class Layer:
    """A random layer in its model: what the methods differentiate.

    per_datum: whether it is a Linear layer that reads one vector a datum, once, so that the cheap exact formula holds.
    outputs: numbers in the network's output for a datum.
    """

    model: nn.Module
    layer: BayesLayer
    per_datum: bool
    outputs: int


def inspect(model: nn.Module, layer: BayesLayer, inputs: Any) -> Layer:
    """Run the network once and see how it uses the layer."""
    seen: list[int] = []
    handle = layer.register_forward_hook(lambda module, args, out: seen.append(args[0].ndim))
    with handle, torch.no_grad():
        output = batches.output_tensor(batches.call(model, batches.rows(inputs, 0, 1)))
    linear = isinstance(layer.shell, nn.Linear)
    return Layer(model, layer, linear and seen == [2], output[0].numel())


def best_method(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood, probes: int) -> str:
    """Exact where that is no dearer than the probes, Gauss-Newton where it is exact, otherwise Hutchinson's estimator.

    Whether Gauss-Newton is exact is found out on a few data: its product with random signs is that of the Hessian.
    """
    zero = _zeros(at.layer)
    if at.per_datum or sum(z.numel() for z in zero.values()) <= probes:
        return "exact"
    if at.outputs > _FEW:
        return "hutchinson"
    inputs, targets = batches.rows(inputs, 0, 32), targets[:32]
    signs = {k: _signs(z, torch.Generator().manual_seed(0)) for k, z in zero.items()}
    exact = _hessian_product(at, inputs, targets, meaning)(signs)
    other = _gauss_newton_product(at, inputs, targets, meaning)(signs)
    gap = sum(float((exact[k] - other[k]).square().sum()) for k in zero)
    size = sum(float(exact[k].square().sum()) for k in zero)
    return "gauss-newton" if gap <= 1e-6 * size else "hutchinson"


def diagonal(
    at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood, method: str, probes: int, generator: torch.Generator
) -> Shift:
    """The diagonal for one batch, a tensor of the shape of each random parameter of the layer.

    Call it under ``using(mean_only=True)`` with the model in eval mode.
    """
    if method == "exact" and at.per_datum:
        return _from_outputs(at, inputs, _output_curvature(at, inputs, targets, meaning))
    if method == "gauss-newton" and at.per_datum:
        return _from_outputs(at, inputs, _output_gauss_newton(at, inputs, targets, meaning))
    if method == "gauss-newton":
        return _gauss_newton(at, inputs, targets, meaning)
    if method == "exact":
        return _unit_by_unit(at, inputs, targets, meaning)
    return _hutchinson(at, inputs, targets, meaning, probes, generator)


def _outputs(at: Layer, inputs: Any) -> Callable[[Shift], Tensor]:
    """The network's outputs as a function of a shift of the layer's random parameters."""

    def outputs(shift: Shift) -> Tensor:
        with _shifted_weights(at.layer, shift):
            return batches.output_tensor(batches.call(at.model, inputs))

    return outputs


def _hessian_product(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood) -> Callable[[Shift], Shift]:
    """v -> H v, for the loss of the batch."""
    outputs = _outputs(at, inputs)

    def loss(shift: Shift) -> Tensor:
        return -meaning.log_prob(outputs(shift), targets).sum()

    return _pullback(grad(loss), _zeros(at.layer))[1]


def _gauss_newton_product(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood) -> Callable[[Shift], Shift]:
    """v -> J' (d2l/df2) J v: the same without the curvature of the network."""
    outputs, zero = _outputs(at, inputs), _zeros(at.layer)
    value, pull = _pullback(outputs, zero)

    def loss(output: Tensor) -> Tensor:
        return -meaning.log_prob(output, targets).sum()

    _, curve = _pullback(grad(loss), value)
    return lambda v: pull(curve(jvp(outputs, (zero,), (v,))[1]))


def _output_curvature(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood) -> Tensor:
    """d2l_n/db_nj^2 for every datum and output of a Linear layer, (n, out).

    One product with the Hessian in b gives column j for all data at once, since those of different data do not mix.
    """

    def loss(shift: Tensor) -> Tensor:
        with _shifted_output(at.layer, shift):
            return -meaning.log_prob(batches.output_tensor(batches.call(at.model, inputs)), targets).sum()

    zero = _zero_output(at, inputs)
    _, product = _pullback(grad(loss), zero)
    n, width = zero.shape
    found = torch.empty_like(zero)
    for units in torch.arange(width, device=zero.device).split(max(1, _AT_ONCE // zero.numel())):
        directions = zero.new_zeros(len(units), n, width)
        directions[torch.arange(len(units)), :, units] = 1.0
        columns = vmap(product)(directions)
        found[:, units] = columns[torch.arange(len(units)), :, units].T
    return found


def _output_gauss_newton(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood) -> Tensor:
    """The same without the curvature of the network, (n, out)."""

    def outputs(shift: Tensor) -> Tensor:
        with _shifted_output(at.layer, shift):
            return batches.output_tensor(batches.call(at.model, inputs))

    zero = _zero_output(at, inputs)
    value, pull = _pullback(outputs, zero)
    sizes, directions = _factors(value, targets, meaning)
    slopes = vmap(pull, chunk_size=max(1, _AT_ONCE // zero.numel()))(directions.movedim(1, 0))
    return (sizes.T.unsqueeze(-1) * slopes.square()).sum(0)


def _from_outputs(at: Layer, inputs: Any, curvature: Tensor) -> Shift:
    """sum_n a_ni^2 d2l_n/db_nj^2 for the weight, and the same with a = 1 for a random bias."""
    seen: list[Tensor] = []
    with at.layer.register_forward_hook(lambda module, args, out: seen.append(args[0])), torch.no_grad():
        batches.call(at.model, inputs)
    found = {"weight": curvature.T @ seen[0].square(), "bias": curvature.sum(0)}
    return {name: found[name] for name in at.layer.posteriors}


def _gauss_newton(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood) -> Shift:
    """Per-datum gradients of the outputs along the eigenvectors of the likelihood's Hessian, squared and weighed."""
    with torch.no_grad():
        value = batches.output_tensor(batches.call(at.model, inputs))
    sizes, directions = _factors(value, targets, meaning)
    zero = _zeros(at.layer)

    def one(datum: Any, size: Tensor, direction: Tensor) -> Shift:
        def output(shift: Shift) -> Tensor:
            alone = batches.map_tensors(lambda t: t.unsqueeze(0), datum)
            with _shifted_weights(at.layer, shift):
                return batches.output_tensor(batches.call(at.model, alone))[0]

        _, pull = _pullback(output, zero)
        slopes = vmap(pull)(direction)
        return {name: torch.tensordot(size, s.square(), 1) for name, s in slopes.items()}

    each = sizes.shape[1] * sum(z.numel() for z in zero.values())
    rows = max(1, _AT_ONCE // each)
    total = zero
    for start in range(0, len(value), rows):
        part = slice(start, start + rows)
        found = vmap(one)(batches.map_tensors(lambda t, p=part: t[p], inputs), sizes[part], directions[part])
        total = {name: total[name] + f.sum(0) for name, f in found.items()}
    return total


def _factors(value: Tensor, targets: Tensor, meaning: Likelihood) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n, k) and eigenvectors (n, k, *output) of d2l_n/df_n^2, the Hessian of the likelihood alone."""
    flat = value.detach().flatten(1)

    def loss(outputs: Tensor) -> Tensor:
        return -meaning.log_prob(outputs.reshape(value.shape), targets).sum()

    _, product = _pullback(grad(loss), flat)
    units = torch.eye(flat.shape[1], device=flat.device, dtype=flat.dtype).unsqueeze(1).expand(-1, *flat.shape)
    curvature = vmap(product)(units).movedim(0, 1)  # column c of every datum's block in one product
    sizes, vectors = torch.linalg.eigh(curvature)
    return sizes, vectors.mT.reshape(*sizes.shape, *value.shape[1:])


def _unit_by_unit(at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood) -> Shift:
    zero = _zeros(at.layer)
    product = _hessian_product(at, inputs, targets, meaning)
    found = {name: torch.empty_like(z) for name, z in zero.items()}
    for name, z in zero.items():
        for number in range(z.numel()):
            direction = {k: torch.zeros_like(v) for k, v in zero.items()}
            direction[name].view(-1)[number] = 1.0
            found[name].view(-1)[number] = product(direction)[name].reshape(-1)[number]
    return found


def _hutchinson(
    at: Layer, inputs: Any, targets: Tensor, meaning: Likelihood, probes: int, generator: torch.Generator
) -> Shift:
    """The mean of v * H v over random signs v (Bekas et al., 2007): unbiased; its noise is what H has off its diagonal.

    Where the network has few outputs the Gauss-Newton part is computed exactly, and the probes see only the rest.
    """
    zero = _zeros(at.layer)
    product = _hessian_product(at, inputs, targets, meaning)
    known, total = None, zero
    if at.outputs <= _FEW:
        known = _gauss_newton_product(at, inputs, targets, meaning)
        total = {k: probes * v for k, v in _gauss_newton(at, inputs, targets, meaning).items()}
    for _ in range(probes):
        signs = {k: _signs(z, generator) for k, z in zero.items()}
        found = product(signs)
        if known is not None:
            part = known(signs)
            found = {k: found[k] - part[k] for k in zero}
        total = {k: total[k] + signs[k] * found[k] for k in zero}
    return {k: v / probes for k, v in total.items()}


def _pullback(function: Callable[[Any], Any], at: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A function's value, and v -> J' v there; J is symmetric where the function is a gradient."""
    value, pull = vjp(function, at)  # type: ignore[misc]
    return value, lambda v: pull(v)[0]


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(0, 2, like.shape, generator=generator)  # on the CPU: a seed means the same on every device
    return drawn.to(like) * 2 - 1


def _zeros(layer: BayesLayer) -> Shift:
    return {name: torch.zeros_like(layer.mean(name)).detach() for name in layer.posteriors}  # type: ignore[arg-type]


def _zero_output(at: Layer, inputs: Any) -> Tensor:
    seen: list[Tensor] = []
    with at.layer.register_forward_hook(lambda module, args, out: seen.append(out)), torch.no_grad():
        batches.call(at.model, inputs)
    return torch.zeros_like(seen[0])


@contextlib.contextmanager
def _shifted_output(layer: BayesLayer, shift: Tensor) -> Iterator[None]:
    """Run a block with something added to what the layer returns."""
    with layer.register_forward_hook(lambda module, args, out: out + shift):
        yield


@contextlib.contextmanager
def _shifted_weights(layer: BayesLayer, shift: Shift) -> Iterator[None]:
    """Run a block with the layer's random parameters at their means plus a shift."""

    def again(module: Any, args: Any, named: Any, out: Tensor) -> Tensor:
        values = {n: module.mean(n) for n in ("weight", "bias")}
        values |= {n: values[n] + s for n, s in shift.items()}
        x, *extra = args
        return module.compute(x, values["weight"], values["bias"], *extra, **named)

    handle: RemovableHandle = layer.register_forward_hook(again, with_kwargs=True)
    with handle:
        yield
