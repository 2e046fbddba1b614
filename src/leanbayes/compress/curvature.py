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
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Batch:
    """A layer, and the data whose loss is differentiated."""

    at: Layer
    inputs: Any
    targets: Tensor
    likelihood: Likelihood

    @property
    def layer(self) -> BayesLayer:
        return self.at.layer

    def outputs(self) -> Tensor:
        """What the network returns."""
        return batches.output_tensor(batches.call(self.at.model, self.inputs))

    def outputs_at(self, shift: Shift) -> Tensor:
        """The same with the layer's random parameters moved away from their means."""
        with _shifted_weights(self.layer, shift):
            return self.outputs()

    def loss(self, outputs: Tensor) -> Tensor:
        """-sum_n log p(y_n | f_n)."""
        return -self.likelihood.log_prob(outputs, self.targets).sum()

    def zeros(self) -> Shift:
        """No shift of any random parameter."""
        return {name: torch.zeros_like(self.layer.mean(name)).detach() for name in self.layer.posteriors}  # type: ignore[arg-type]

    def seen(self) -> tuple[Tensor, Tensor]:
        """What the layer reads and returns."""
        found: list[tuple[Tensor, Tensor]] = []
        with self.layer.register_forward_hook(lambda m, args, out: found.append((args[0], out))), torch.no_grad():
            batches.call(self.at.model, self.inputs)
        return found[0]


def inspect(model: nn.Module, layer: BayesLayer, inputs: Any) -> Layer:
    """Run the network once and see how it uses the layer."""
    seen: list[int] = []
    handle = layer.register_forward_hook(lambda module, args, out: seen.append(args[0].ndim))
    with handle, torch.no_grad():
        output = batches.output_tensor(batches.call(model, batches.rows(inputs, 0, 1)))
    linear = isinstance(layer.shell, nn.Linear)
    return Layer(model, layer, linear and seen == [2], output[0].numel())


def best_method(batch: Batch, probes: int) -> str:
    """Exact where that is no dearer than the probes, Gauss-Newton where it is exact, otherwise Hutchinson's estimator.

    Whether Gauss-Newton is exact is found out on a few data: its product with random signs is that of the Hessian.
    """
    zero = batch.zeros()
    if batch.at.per_datum or sum(z.numel() for z in zero.values()) <= probes:
        return "exact"
    if batch.at.outputs > _FEW:
        return "hutchinson"
    few = replace(batch, inputs=batches.rows(batch.inputs, 0, 32), targets=batch.targets[:32])
    signs = {k: _signs(z, torch.Generator().manual_seed(0)) for k, z in zero.items()}
    exact, other = _hessian_product(few)(signs), _gauss_newton_product(few)(signs)
    gap = sum(float((exact[k] - other[k]).square().sum()) for k in zero)
    size = sum(float(exact[k].square().sum()) for k in zero)
    return "gauss-newton" if gap <= 1e-6 * size else "hutchinson"


def diagonal(batch: Batch, method: str, probes: int, generator: torch.Generator) -> Shift:
    """The diagonal for one batch, a tensor of the shape of each random parameter of the layer.

    Call it under ``using(mean_only=True)`` with the model in eval mode.
    """
    if method == "hutchinson":
        return _hutchinson(batch, probes, generator)
    if batch.at.per_datum:
        return _from_outputs(batch, _output_curvature(batch) if method == "exact" else _output_gauss_newton(batch))
    return _unit_by_unit(batch) if method == "exact" else _gauss_newton(batch)


def _hessian_product(batch: Batch) -> Callable[[Shift], Shift]:
    """v -> H v, for the loss of the batch."""
    return _pullback(grad(lambda shift: batch.loss(batch.outputs_at(shift))), batch.zeros())[1]


def _gauss_newton_product(batch: Batch) -> Callable[[Shift], Shift]:
    """v -> J' (d2l/df2) J v: the same without the curvature of the network."""
    zero = batch.zeros()
    value, pull = _pullback(batch.outputs_at, zero)
    _, curve = _pullback(grad(batch.loss), value)
    return lambda v: pull(curve(jvp(batch.outputs_at, (zero,), (v,))[1]))


def _output_curvature(batch: Batch) -> Tensor:
    """d2l_n/db_nj^2 for every datum and output of a Linear layer, (n, out).

    One product with the Hessian in b gives column j for all data at once, since those of different data do not mix.
    """
    zero = torch.zeros_like(batch.seen()[1])
    _, product = _pullback(grad(lambda shift: batch.loss(_outputs_beside(batch, shift))), zero)
    n, width = zero.shape
    found = torch.empty_like(zero)
    for units in torch.arange(width, device=zero.device).split(max(1, _AT_ONCE // zero.numel())):
        directions = zero.new_zeros(len(units), n, width)
        directions[torch.arange(len(units)), :, units] = 1.0
        columns = vmap(product)(directions)
        found[:, units] = columns[torch.arange(len(units)), :, units].T
    return found


def _output_gauss_newton(batch: Batch) -> Tensor:
    """The same without the curvature of the network, (n, out)."""
    zero = torch.zeros_like(batch.seen()[1])
    value, pull = _pullback(lambda shift: _outputs_beside(batch, shift), zero)
    sizes, directions = _factors(batch, value)
    slopes = vmap(pull, chunk_size=max(1, _AT_ONCE // zero.numel()))(directions.movedim(1, 0))
    return (sizes.T.unsqueeze(-1) * slopes.square()).sum(0)


def _from_outputs(batch: Batch, curvature: Tensor) -> Shift:
    """sum_n a_ni^2 d2l_n/db_nj^2 for the weight, and the same with a = 1 for a random bias."""
    found = {"weight": curvature.T @ batch.seen()[0].square(), "bias": curvature.sum(0)}
    return {name: found[name] for name in batch.layer.posteriors}


def _gauss_newton(batch: Batch) -> Shift:
    """Per-datum gradients of the outputs along the eigenvectors of the likelihood's Hessian, squared and weighed."""
    with torch.no_grad():
        value = batch.outputs()
    sizes, directions = _factors(batch, value)
    zero = batch.zeros()

    def one(datum: Any, size: Tensor, direction: Tensor) -> Shift:
        alone = replace(batch, inputs=batches.map_tensors(lambda t: t.unsqueeze(0), datum))
        _, pull = _pullback(lambda shift: alone.outputs_at(shift)[0], zero)
        slopes = vmap(pull)(direction)
        return {name: torch.tensordot(size, s.square(), 1) for name, s in slopes.items()}

    each = sizes.shape[1] * sum(z.numel() for z in zero.values())
    rows = max(1, _AT_ONCE // each)
    total = zero
    for start in range(0, len(value), rows):
        stop = start + rows
        found = vmap(one)(batches.rows(batch.inputs, start, stop), sizes[start:stop], directions[start:stop])
        total = {name: total[name] + f.sum(0) for name, f in found.items()}
    return total


def _factors(batch: Batch, value: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n, k) and eigenvectors (n, k, *output) of d2l_n/df_n^2, the Hessian of the likelihood alone."""
    flat = value.detach().flatten(1)
    _, product = _pullback(grad(lambda outputs: batch.loss(outputs.reshape(value.shape))), flat)
    units = torch.eye(flat.shape[1], device=flat.device, dtype=flat.dtype).unsqueeze(1).expand(-1, *flat.shape)
    curvature = vmap(product)(units).movedim(0, 1)  # column c of every datum's block in one product
    sizes, vectors = torch.linalg.eigh(curvature)
    return sizes, vectors.mT.reshape(*sizes.shape, *value.shape[1:])


def _unit_by_unit(batch: Batch) -> Shift:
    zero, product = batch.zeros(), _hessian_product(batch)
    found = {name: torch.empty_like(z) for name, z in zero.items()}
    for name, z in zero.items():
        for at in itertools.product(*map(range, z.shape)):
            direction = {k: torch.zeros_like(v) for k, v in zero.items()}
            direction[name][at] = 1.0
            found[name][at] = product(direction)[name][at]
    return found


def _hutchinson(batch: Batch, probes: int, generator: torch.Generator) -> Shift:
    """The mean of v * H v over random signs v (Bekas et al., 2007): unbiased; its noise is what H has off its diagonal.

    Where the network has few outputs the Gauss-Newton part is computed exactly, and the probes see only the rest.
    """
    zero, product = batch.zeros(), _hessian_product(batch)
    known, total = None, zero
    if batch.at.outputs <= _FEW:
        known = _gauss_newton_product(batch)
        total = {k: probes * v for k, v in _gauss_newton(batch).items()}
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


def _outputs_beside(batch: Batch, shift: Tensor) -> Tensor:
    """What the network returns with something added to what the layer returns."""
    with batch.layer.register_forward_hook(lambda module, args, out: out + shift):
        return batch.outputs()


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
