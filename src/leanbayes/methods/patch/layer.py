"""Layers whose parameters are mixtures of components: weight layers and norm layers, patched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ArtifactError
from ...kl import kl
from ...layers.contract import remove_hooks
from ...layers.operations import WEIGHT_LAYERS, refusal as weight_refusal, unusual
from ...layers.shell import StandIn
from ...sampling import context, draw
from . import folded
from .mixture import Assignment, Mixture

if TYPE_CHECKING:
    from ...priors import Normal

Statistics = Literal["shared", "component"]


class Patched(StandIn):
    """A layer some of whose parameters are mixtures; a pass draws their assignments once.

    posteriors: the mixture of each patched parameter by name; the others stay ordinary parameters.
    priors: by parameter, patched or not; a parameter without a prior has no KL.
    approximation: the form of the KL, one of "equation 6", "bound", "monte carlo".
    statistics: of a BatchNorm: running statistics shared by all components, or one set for each, which needs one index
        for the layer. Training updates the statistics of the component that is drawn.

    >>> from leanbayes.methods.patch.mixture import Assignment, Mixture
    >>> q = Mixture(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), Assignment((), (0.5, 0.5)))
    >>> layer = Patched(nn.LayerNorm(2), {"weight": q}, {})
    >>> layer(torch.randn(3, 2)).shape, layer.normalized_shape, sorted(layer.state_dict())
    (torch.Size([3, 2]), (2,), ['bias', 'posteriors.weight.loc'])
    """

    def __init__(
        self,
        module: nn.Module,
        posteriors: dict[str, Mixture],
        priors: dict[str, Normal],
        *,
        approximation: str | None = None,
        statistics: Statistics = "shared",
    ) -> None:
        super().__init__(module, tuple(posteriors))
        self.shell._buffers = dict.fromkeys(module._buffers)
        self.posteriors = nn.ModuleDict(posteriors)
        self.priors, self.approximation, self.statistics = priors, approximation, statistics
        for name, buffer in module._buffers.items():
            if buffer is not None and statistics == "component":
                buffer = torch.stack([buffer] * posteriors["weight"].components)
            self.register_buffer(name, buffer, name not in module._non_persistent_buffers_set)
        for site in self.assignments() if is_norm(module) else ():
            site.folds = True
        self.train(module.training)

    def forward(self, input: Tensor, *extra: Any, **named: Any) -> Tensor:
        """The module's operation with the components drawn, or at the means."""
        indices: dict[int, Tensor] = {}
        site = self._only_site() if isinstance(self.shell, WEIGHT_LAYERS) else None
        if site is not None and self._inputs_shared(input):
            indices[id(site)] = index = draw(site)
            if folded.is_batched(index):  # else the samples share the component too
                return self._through_all(index, input, *extra, **named)
        weight, bias = self._value("weight", indices), self._value("bias", indices)
        if isinstance(self.shell, WEIGHT_LAYERS):
            return self.operation.apply(self.shell, input, weight, bias, *extra, **named)
        normalise = next(function for kind, function in _NORMS.items() if isinstance(self.shell, kind))
        return normalise(self, next(iter(indices.values()), None), input, weight, bias)

    def assignments(self) -> list[Assignment]:
        """The random sites of the layer, each once."""
        return list({id(q.assignment): q.assignment for q in self._mixtures().values()}.values())

    def kl_terms(self) -> Iterator[tuple[Any, Callable[[], Tensor]]]:
        """Every parameter that has a prior with its term, for `leanbayes.kl.kl_sum`."""
        mixtures = self._mixtures()
        for name, prior in self.priors.items():
            if name in mixtures:
                yield mixtures[name], partial(self._kl, name, prior)
            elif (parameter := self._parameters.get(name)) is not None:
                yield parameter, partial(self._penalty, name, prior)
        if self.approximation != "monte carlo" or not self.priors:  # whose density has the indices in it
            for site in self.assignments():
                if site.logits is not None:
                    yield site, site.divergence

    def value(self, name: str) -> nn.Parameter | None:
        """The mean as a parameter."""
        q = self._mixtures().get(name)
        return self._parameters.get(name) if q is None else nn.Parameter(q.mean.detach().clone(), q.loc.requires_grad)

    def restored(self) -> nn.Module:
        """The plain module again, with the means as its parameters and its statistics."""
        plain = super().restored()
        plain._buffers = dict(self._buffers)
        if self.statistics == "component":
            with torch.no_grad():
                mean, var = self._pooled()
            count = self.num_batches_tracked
            plain._buffers.update(
                running_mean=mean, running_var=var, num_batches_tracked=None if count is None else count.sum()
            )
        return plain

    def check_saveable(self, model: nn.Module) -> None:
        """Refuse layers that should share an assignment but were converted in separate calls."""
        mine = [m for m in model.modules() if isinstance(m, Patched) and m.method == self.method]
        if len({id(site) for layer in mine for site in layer.assignments() if site.held}) > 1:
            raise ArtifactError(
                f"expected one assignment for all layers of {self.method}, received several, since parts of the model "
                "were converted in calls of their own, which a file cannot tell apart; convert the model in one call, "
                "or its parts by methods that differ"
            )

    def _only_site(self) -> Assignment | None:
        """The site of a layer that takes one component as a whole, else None."""
        sites = self.assignments()
        return sites[0] if len(sites) == 1 and not sites[0].shape else None

    def _inputs_shared(self, x: Tensor) -> bool:
        """Whether vmap runs over samples with the same inputs."""
        return not context.mean_only and folded.running() and not folded.is_batched(x)

    def _through_all(self, index: Tensor, x: Tensor, *extra: Any, **named: Any) -> Tensor:
        """Compute every component once and select by sample, without a copy of the weight per sample."""
        centres = {name: q.centres for name, q in self._mixtures().items()}
        outputs = []
        for k in range(len(centres["weight"])):
            weight, bias = (centres[n][k] if n in centres else self._parameters.get(n) for n in ("weight", "bias"))
            outputs.append(self.operation.apply(self.shell, x, weight, bias, *extra, **named))
        return torch.stack(outputs).index_select(0, index.reshape(1)).squeeze(0)

    def _value(self, name: str, indices: dict[int, Tensor]) -> Tensor | None:
        q: Mixture | None = self.posterior(name)  # type: ignore[assignment]
        if q is None:
            return self._parameters.get(name)
        if context.mean_only:
            return q.mean
        site = q.assignment
        if id(site) not in indices:  # weight and bias may share it: one draw for both
            indices[id(site)] = draw(site)
        return q.sample(indices[id(site)])

    def _mixtures(self) -> dict[str, Mixture]:
        return dict(self.posteriors.items())  # type: ignore[arg-type]

    def _kl(self, name: str, prior: Normal) -> Tensor:
        return self.total(name, kl(self._mixtures()[name], prior, approximation=self.approximation))

    def _penalty(self, name: str, prior: Normal) -> Tensor:
        """(M - mean)^2 / (2 std^2): the shared part of equation 6."""
        parameter = self._parameters[name]
        assert parameter is not None
        return self.total(name, (parameter - prior.mean).square() / (2 * prior.std**2))

    def _pooled(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the activations under the mixture of all components."""
        p = torch.tensor(self._mixtures()["weight"].assignment.probabilities).to(self.running_mean).unsqueeze(1)
        mean = (p * self.running_mean).sum(0)
        return mean, (p * (self.running_var + (self.running_mean - mean).square())).sum(0)

    def read(self, name: str) -> Tensor | None:
        """A parameter read from outside, as by attention; a bias takes the component of the weight read before it."""
        indices: dict[int, Tensor] = {} if name == "weight" else self.__dict__.pop("_read_last", {})
        value = self._value(name, indices)
        if name == "weight" and "bias" in self.posteriors and context.draws is None:
            self.__dict__["_read_last"] = indices
        return value


def refusal(module: nn.Module) -> str | None:
    """Why the parameters of a module cannot be mixtures, or None if they can.

    >>> refusal(nn.BatchNorm2d(3)) is None, refusal(nn.Linear(2, 2)) is None
    (True, True)
    >>> refusal(nn.LayerNorm(3, elementwise_affine=False))
    'it has no weight to patch'
    """
    if not is_norm(module):
        return weight_refusal(module)
    kind = next(kind for kind in _NORMS if isinstance(module, kind))
    if (why := unusual(module, kind)) is not None:
        return why
    if module._parameters.get("weight") is None:
        return "it has no weight to patch"
    return "it has submodules of its own, which a stand-in would lose" if module._modules else None


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm, LayerNorm or GroupNorm."""
    return isinstance(module, tuple(_NORMS))


def batch_norm(layer: Any, index: Tensor | None, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """torch's BatchNorm with given gamma and beta; in training it updates the layer's running statistics.

    index: the component whose statistics are used, if each has its own.
    """
    shell, each = layer.shell, layer.statistics == "component"
    shell._check_input_dim(x)
    mean, var, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
    tracking = layer.training and shell.track_running_stats
    if each and mean is not None:
        if index is None:
            mean, var = layer._pooled()
            tracking = False
        else:
            row = index.reshape(1)
            mean, var = (t.index_select(0, row).squeeze(0) for t in (mean, var))
    factor = 0.0 if shell.momentum is None else shell.momentum
    if tracking and count is not None:
        count.add_(1) if not each else count.index_add_(0, row, torch.ones_like(row))
        if shell.momentum is None:
            factor = 1.0 / float(count if not each else count.index_select(0, row))
    from_batch = layer.training or (mean is None and var is None)
    if not from_batch and (folded_out := folded.batch_norm(x, mean, var, weight, bias, shell.eps)) is not None:
        return folded_out
    known = not layer.training or tracking
    out = F.batch_norm(x, mean if known else None, var if known else None, weight, bias, from_batch, factor, shell.eps)
    if each and tracking:
        with torch.no_grad():
            layer.running_mean.index_copy_(0, row, mean.unsqueeze(0))
            layer.running_var.index_copy_(0, row, var.unsqueeze(0))
    return out


def _layer_norm(layer: Any, index: Tensor | None, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.layer_norm(x, layer.shell.normalized_shape, weight, bias, layer.shell.eps)


def _group_norm(layer: Any, index: Tensor | None, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.group_norm(x, layer.shell.num_groups, weight, bias, layer.shell.eps)


_NORMS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.modules.batchnorm._BatchNorm: batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}


def attach(model: nn.Module) -> None:
    """Draw assignments that several layers share once per pass of the model.

    Layers that the same method converted share one, also if they were converted in separate calls.
    """
    remove_hooks(model, Assignment)
    held: dict[Any, Assignment] = {}
    for layer in model.modules():
        for q in layer._mixtures().values() if isinstance(layer, Patched) else ():
            if q.assignment.held:
                q.assignment = held.setdefault(layer.method or q.assignment, q.assignment)
    for site in held.values():
        model.register_forward_pre_hook(site.begin)
        model.register_forward_hook(site.end, always_call=True)
