"""`recalibrate_`: re-estimate the running statistics of BatchNorm layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import batches, checks, sampling
from ..batches import accept
from ..errors import ConversionError, DataError
from ..eval_mode import undisturbed
from ..layers.bayes import BayesLayer, FixedLayer
from ..layers.contract import BayesianLayer, original
from ..ordering.unit import OrderingUnit, units
from . import data as feeds, rng
from .guard import check_inputs, finite

BATCH = 200
_MARK = "_leanbayes_at_means"  # on a BatchNorm: how many batches it had seen when it was re-estimated at the means


def recalibrate_(
    model: nn.Module,
    loader: Any,
    *,
    at: Literal["samples", "means"] = "samples",
    data: int | None = None,
    passes: int = 1,
    momentum: float | None = None,
    seed: int = 0,
) -> nn.Module:
    """Re-estimate the running means and variances of a model's BatchNorm layers, in place; nothing else changes.

    By default they are averages over training, with its noise and all widths of a nested network. At the means of a
    noisy layer its inputs have another scale, and those averages are wrong.

    loader: as in `fit`; the targets are not read. Tensors are read in batches of 200.
    at: "samples" draws a whole network for every batch, as `predict` does (a nested network at the width that it
        predicts at); "means" uses the posterior means, dropout off, for `predict(..., mean_only=True)` only: under
        noise those statistics are wrong in turn. Keep a copy.
    data: how many data to read, for example 1,024; None reads all.
    passes: how often to read them, each time with other noise; useful if a draw is shared by a whole batch and is
        large, as in patched norm layers.
    momentum: None gives the plain average over the data read, weighted by the sizes of batches (batches count equally
        if every component of a `Patch` has statistics of its own); a number updates the present statistics as torch's
        BatchNorm does.

    >>> import torch
    >>> model = nn.Sequential(nn.BatchNorm1d(3))
    >>> x = 5 + torch.randn(400, 3)
    >>> _ = recalibrate_(model, (x,))
    >>> torch.allclose(model[0].running_mean, x.mean(0), atol=1e-4)
    True
    """
    checks.module("model", model, error=ConversionError)
    checks.one_of("at", at, ("samples", "means"))
    if data is not None:
        data = checks.whole_number("data", data)
    passes, seed = checks.whole_number("passes", passes), checks.seed(seed)
    if momentum is not None:
        momentum = checks.number("momentum", momentum, above=0, at_most=1)
    norms = _norms(model)
    if not norms:
        raise ConversionError("expected a model with BatchNorm layers that track statistics, found none")
    apart: list[Any] = [norm for norm in norms if isinstance(norm, BayesianLayer) and norm.statistics == "component"]
    if apart and at == "means":
        raise ConversionError(
            "at='means': expected statistics that all components share, received Patch(statistics='component'), whose "
            "means are those of no single component; use at='samples'"
        )
    loader = accept(loader, model, name="loader")
    loader = (loader,) if isinstance(loader, Tensor) else loader
    feed = feeds.feed(loader, batch_size=BATCH, seed=seed)
    # only a plain average can mend statistics that are not finite
    broken = momentum is not None and not finite(b for norm in norms for b in norm.buffers() if b.is_floating_point())
    kept, momenta = _statistics(norms), [options.momentum for options in norms.values()]
    device = next(b.device for norm in norms for b in norm.buffers())
    try:
        with undisturbed(model), rng.preserved(device):
            rng.seed_all(sampling.mix(seed, 0))  # numpy's and python's too: the user's loader may draw from them
            for module in model.modules() if at == "samples" else norms:
                module.training = not isinstance(module, OrderingUnit)  # at the widths of prediction
            estimator: Any = sampling.context.estimator or "weight"
            for norm in apart if momentum is None else ():
                norm.num_batches_tracked.zero_()
            seen = dict.fromkeys(norms, 0)
            sites = list({id(site): site for norm in apart for site in norm.assignments()}.values())
            for number, inputs in enumerate(_read(feed, data, passes)):
                check_inputs(inputs)
                size = batches.size(inputs)
                for norm, options in norms.items():
                    plain = momentum is None and norm not in apart  # those in `apart` count batches of each component
                    options.momentum = size / (seen[norm] + size) if plain else momentum
                before = _statistics(norms) if size == 1 else []
                draws = {id(site): site.laid_out(seed, i, [number])[0] for i, site in enumerate(sites)}  # in turn
                try:
                    with sampling.using(mean_only=at == "means", draws=draws, estimator=estimator):
                        batches.call(model, batches.to(inputs, device))
                except ValueError as error:
                    if size > 1 or "more than 1 value per channel" not in str(error):
                        raise
                    _put_back(before)  # a single datum of one position has no variance
                    continue
                active = {id(module) for module in sampling.taking_part(model)}
                for norm in norms:
                    seen[norm] += size if id(norm) in active else 0
        if not any(seen.values()):
            raise DataError(
                "expected at least one batch to estimate BatchNorm's statistics from, received none; a single datum "
                "does not count where it has no variance"
            )
        if (bad := [m for m in norms if not finite(b for b in m.buffers() if b.is_floating_point())]) and not broken:
            names = [name for name, module in model.named_modules() if module is bad[0]]
            raise DataError(
                f"expected finite inputs of every BatchNorm layer, received others at {names[0]!r}; the data are "
                "finite, so a layer in front of it makes them: look for weights or data that are too large"
            )
        if momentum is None and any(bool((norm.num_batches_tracked == 0).any()) for norm in apart):
            raise DataError(
                "expected a batch for every component that has statistics of its own, received too few; read more "
                "data, in smaller batches, or several times with passes=..."
            )
    except BaseException:
        _put_back(kept)
        raise
    finally:
        for options, own in zip(norms.values(), momenta, strict=True):
            options.momentum = own
    for norm in norms:
        norm.__dict__.pop(_MARK, None)
        if at == "means":
            norm.__dict__[_MARK] = _batches_seen(norm)
    return model


def needs_whole_draws(model: nn.Module) -> bool:
    """Whether statistics must be collected anew after training, since `predict` has other noise.

    Training with local reparameterisation and Flipout draws anew for every datum, and a nested network runs at all
    widths; `predict` draws whole networks at one width. False if a BatchNorm is frozen or belongs to a resting member.
    """
    active = {id(module) for module in sampling.taking_part(model)}
    if not can_recalibrate(model) or any(id(norm) not in active for norm in _norms(model)):
        return False
    layers = [m for m in model.modules() if isinstance(m, BayesLayer) and not isinstance(m, FixedLayer)]
    return any(layer.estimator != "weight" for layer in layers) or bool(units(model))


def can_recalibrate(model: nn.Module) -> bool:
    """Whether a model has BatchNorm statistics, none of them frozen."""
    norms = _norms(model)
    return bool(norms) and not any(model.training and not norm.training for norm in norms)


@contextlib.contextmanager
def kept_statistics(model: nn.Module) -> Iterator[None]:
    """Run a block, then restore the statistics of BatchNorm layers."""
    kept = _statistics(_norms(model))
    try:
        yield
    finally:
        _put_back(kept)


def has_statistics(model: nn.Module) -> bool:
    """Whether a model has BatchNorm layers with running statistics."""
    return bool(_norms(model))


def collected_at_means(model: nn.Module) -> bool:
    """Whether a model's statistics were last estimated at the means.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> collected_at_means(model)
    False
    """
    norms = _norms(model)
    return bool(norms) and all(norm.__dict__.get(_MARK) == _batches_seen(norm) for norm in norms)


def _read(feed: feeds.Feed, data: int | None, passes: int) -> Iterator[Any]:
    """The inputs of the first ``data`` data of each pass."""
    for number in range(passes):
        left = data
        for batch in feed.epoch(number):
            inputs = batches.split(batch)[0]
            if left is not None:
                inputs = batches.rows(inputs, 0, min(left, batches.size(inputs)))
                left -= batches.size(inputs)
            if batches.size(inputs):
                yield inputs
            if left == 0:
                break


def _norms(model: nn.Module) -> dict[nn.Module, _BatchNorm]:
    """The layers with running statistics, each with the module that has its options: itself, or its shell."""
    every = {module: original(module) for module in model.modules()}
    return {
        m: own for m, own in every.items() if isinstance(own, _BatchNorm) and m._buffers.get("running_mean") is not None
    }


def _statistics(norms: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """The buffers of layers, each with a copy of its values."""
    return [(buffer, buffer.clone()) for norm in norms for buffer in norm._buffers.values() if buffer is not None]


def _put_back(kept: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in kept:
        buffer.copy_(before)


def _batches_seen(norm: nn.Module) -> int:
    count = norm._buffers["num_batches_tracked"]
    return -1 if count is None else int(count.sum())
