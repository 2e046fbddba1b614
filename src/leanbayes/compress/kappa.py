"""The phase-transition criterion: how far a weight's spread reaches beyond where the loss is linear in it.

Variance networks (Neklyudov et al., 2019), section 5. Where kappa is small, a weight can be replaced by its mean, or
set to zero, and what is left is a sparse ensemble (section 6.4, figure 5).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Sized
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .. import batches, checks
from ..batches import accept, stream
from ..errors import ConfigError, ConversionError, DataError
from ..eval_mode import undisturbed
from ..layers.bayes import BayesLayer
from ..posteriors import Gaussian
from ..posteriors.base import Posterior
from ..posteriors.scale import rho_from_std
from ..prediction import resolve_task
from ..sampling import mix, using
from . import curvature
from .candidates import lowest_scores

Method = Literal["auto", "exact", "gauss-newton", "hutchinson"]


def kappa(
    model: nn.Module,
    loader: Any,
    *,
    task: Any = None,
    layers: Sequence[str] | None = None,
    method: Method = "auto",
    probes: int = 256,
    num_data: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Tensor]:
    r"""kappa = variance x \|curvature\| of every random weight, by the name of its tensor ("dense1.weight").

    kappa_ij = sigma_ij^2 \| sum_n d2/dw_ij^2 log p(y_n \| x_n, W) \| at W = M, the posterior means: equation 16 with
    the sum over data and the absolute value that it lacks. One layer at a time: all other weights stay at their means,
    BatchNorm in eval mode. Tensors have the shape of the weight; a pruned weight has kappa 0.

    loader: batches of (inputs, targets), a pair of tensors, or a data set; a thousand training data are plenty.
    num_data: the number of data that these are a sample of: the sum is scaled to it, so that kappa means the same
        whatever the size of the sample. None sums over the loader alone.
    task: as in `predict`; None for what the model was fitted to. layers: names or globs; None takes all random layers.
    method: "auto" is exact for Linear layers, at the cost of one product with the Hessian of what follows for each of
        their outputs. For the others, whose weights are shared by positions, it is Gauss-Newton where that is exact too
        (all that follows is piecewise linear: ReLU, max-pooling, BatchNorm; this is found out on a few data), and
        Hutchinson's unbiased estimator elsewhere. Each can be asked for by name; see `leanbayes.compress.curvature`.
    probes: random vectors a batch of Hutchinson's estimator, drawn by `seed`.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, {"0": lb.Variance(log_alpha=4.0)})
    >>> x, y = torch.randn(32, 4), torch.randint(3, (32,))
    >>> found = kappa(model, (x, y), task="classification", progress=False)
    >>> {name: tuple(values.shape) for name, values in found.items()}
    {'0.weight': (8, 4)}
    """
    _check(method, probes, num_data, progress)
    seed = checks.seed(seed)
    chosen = _chosen(model, layers)
    loader = accept(loader, model, name="loader")
    likelihood = resolve_task(model, task)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    totals: dict[str, Tensor] = {}
    used: dict[str, tuple[curvature.Layer, str]] = {}
    seen = 0
    with undisturbed(model), using(mean_only=True):  # torch.func differentiates inside of no_grad
        for number, batch in enumerate(_stream(loader, progress)):
            inputs, targets = (batches.to(part, device) for part in batches.split(batch))
            if targets is None:
                raise DataError(
                    "kappa: expected batches of (inputs, targets), received inputs alone; it needs the loss"
                )
            if not batches.size(inputs):
                continue
            for index, (name, layer) in enumerate(chosen.items()):
                at = used[name][0] if name in used else curvature.inspect(model, layer, inputs)
                data = curvature.Batch(at, inputs, targets, likelihood)
                if name not in used:
                    used[name] = at, curvature.best_method(data, probes) if method == "auto" else method
                generator = torch.Generator().manual_seed(mix(seed, index, number))
                found = curvature.diagonal(data, used[name][1], probes, generator)
                for part, values in found.items():
                    key = f"{name}.{part}".lstrip(".")
                    wide = values.detach().double()
                    totals[key] = totals[key] + wide if key in totals else wide
            seen += batches.size(inputs)
    if not seen:
        raise DataError("kappa: expected at least one datum, received none")
    scale = 1.0 if num_data is None else num_data / seen
    scores = {}
    with torch.no_grad():
        for name, layer in chosen.items():
            for part in layer.posteriors:
                spread, key = layer.variance(part), f"{name}.{part}".lstrip(".")
                assert spread is not None
                scores[key] = (scale * totals[key].abs() * spread.double()).float()
    for name, values in scores.items():
        if not bool(values.isfinite().all()):
            raise DataError(
                f"kappa of {name}: expected finite numbers, found NaN or infinity; are model and data sound?"
            )
    return scores


def frozen(
    model: nn.Module, scores: Mapping[str, Tensor], *, fraction: float | None = None, threshold: float | None = None
) -> nn.Module:
    """A copy whose weights with the lowest scores are their means, with no spread; the others stay random (figure 5).

    scores: as `kappa` gives them; tensors that are not named stay as they are. fraction: of the weights named, exactly
    round(fraction * number), lowest first. threshold: instead, those whose score is below it.

    For prediction and evaluation: each tensor named becomes a Gaussian, whose std is 0 where it is frozen, whatever
    posterior it had. To zero weights for good, `prune_(model, by="kappa", scores=scores, ...)`.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> _ = lb.bayesianize_(model, {"0": lb.Variance(log_alpha=4.0)})
    >>> half = frozen(model, {"0.weight": torch.arange(32.0).view(8, 4)}, fraction=0.5)
    >>> int((half[0].posteriors["weight"].std == 0).sum())
    16
    """
    frozen_places = lowest_scores(model, scores, fraction=fraction, threshold=threshold)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, mask in frozen_places.items():
            layer_name, _, part = name.rpartition(".")
            layer = other.get_submodule(layer_name)
            assert isinstance(layer, BayesLayer)
            q = layer.posteriors[part]
            assert isinstance(q, Posterior)
            std = q.std
            still = mask.to(std.device) | (std == 0)
            # softplus(-inf) is exactly 0, and so is its slope
            rho = torch.where(still, -torch.inf, rho_from_std(std.where(~still, 1.0)))
            settled = Gaussian(q.mean.clone(), rho)
            settled.keep = q.keep
            layer.posteriors[part] = settled
    return other


def _chosen(model: nn.Module, layers: Sequence[str] | None) -> dict[str, BayesLayer]:
    """The random layers asked for, by name; refused before anything is computed."""
    checks.module("model", model, error=ConversionError)
    known = {name: m for name, m in model.named_modules() if isinstance(m, BayesLayer) and len(m.posteriors)}
    if not known:
        raise ConversionError(
            "kappa: expected a model with random layers, found none; lb.bayesianize_(model, lb.Variance()) first"
        )
    owners: dict[int, str] = {}
    for name, layer in known.items():
        for q in layer.posteriors.values():
            if (other := owners.setdefault(id(q), name)) != name:
                raise ConfigError(
                    f"kappa: {other!r} and {name!r} share one random tensor, and the criterion takes one layer at a "
                    "time; untie them first"
                )
        if not all(q.has_mean for q in layer.posteriors.values()):
            raise ConfigError(
                f"kappa: the weights of {name!r} have no mean but zero by construction, and the criterion asks whether "
                "weights can be replaced by their means; compute it before zero_means_, or train with means"
            )
    if layers is None:
        return known
    a_name = partial(checks.instance, kind=str, what="the name of a layer")
    wanted = checks.iterable_of("layers", layers, "names", a_name, hint="pass layers=['dense1']")
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(
                f"layers: expected names of random layers ({', '.join(known)}), received {checks.short(pattern)}"
            )
    return {name: layer for name, layer in known.items() if any(fnmatchcase(name, p) for p in wanted)}


def _check(method: Any, probes: Any, num_data: Any, progress: Any) -> None:
    checks.one_of("method", method, get_args(Method))
    checks.whole_number("probes", probes)
    if num_data is not None:
        checks.whole_number("num_data", num_data)
    checks.flag("progress", progress)


def _stream(loader: Any, progress: bool) -> Iterator[Any]:
    if not progress:
        return stream(loader)
    from rich.console import Console
    from rich.progress import track

    total = len(loader) if isinstance(loader, Sized) and not isinstance(loader, (Tensor, tuple)) else None
    console = Console(stderr=True)
    shown = track(
        stream(loader), "kappa", total=total, transient=True, console=console, disable=not console.is_terminal
    )
    return iter(shown)
