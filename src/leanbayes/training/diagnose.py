"""Finding the cause of a loss that is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import batches
from ..kl import kl_sum
from ..layers.contract import BayesianLayer
from .elbo import ELBO, Terms


def explain(model: nn.Module, elbo: ELBO, inputs: Any, targets: Any, terms: Terms) -> str:
    """Say what made the loss non-finite: the inputs, a parameter, a layer, the likelihood or the KL.

    The forward pass is run again on the batch, so the caller puts the random generators back first.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    >>> _ = nn.init.constant_(model[0].weight, torch.nan)
    >>> elbo, x = ELBO("regression", num_data=1), torch.ones(1, 1)
    >>> explain(model, elbo, x, x, elbo(model, model(x), x))
    "loss is nan: the first non-finite output is that of layer '0' (Linear), whose 'weight' was non-finite already; ..."
    """
    loss = f"loss is {terms.loss.item()}"
    if _bad(inputs):
        return f"{loss}: the inputs of this batch are non-finite already; clean the data"
    if isinstance(terms.latent_kl, Tensor) and not bool(torch.isfinite(terms.latent_kl)):
        return f"{loss}: the KL of the latents is {terms.latent_kl.item()}; try a lower lr or clip=1.0"
    if bool(torch.isfinite(terms.nll)):
        return f"{loss}: nll is {terms.nll.item():.4g} but the KL is {terms.kl.item()}{_kl_culprit(model)}"
    if (culprit := first_bad_layer(model, inputs, targets)) is None:
        return (
            f"{loss}: every layer's output is finite, but the {elbo.likelihood.task} log-likelihood of them is not; "
            "outputs this large want a lower lr or clip=1.0"
        )
    name, module, came_in = culprit
    kind = type(module).__name__ + (f" of {type(module.shell).__name__}" if isinstance(module, BayesianLayer) else "")
    where = f"the first non-finite output is that of layer {name!r} ({kind})"
    if parameter := next((k for k, p in module.named_parameters() if _bad(p)), None):
        where += f", whose {parameter!r} was non-finite already; an earlier step blew up, try a lower lr or clip=1.0"
    elif came_in:
        where += ", which was called with a non-finite input that no layer made"
    else:
        where += ", whose inputs and parameters are finite; try a lower lr or clip=1.0"
    return f"{loss}: {where}"


def first_bad_layer(model: nn.Module, inputs: Any, targets: Any = None) -> tuple[str, nn.Module, bool] | None:
    """Name and module of the first non-finite output, and whether its inputs were non-finite; None if there is none."""
    found: list[tuple[str, nn.Module, bool]] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
        if not found and _bad(output):
            found.append((names[module] or "the model itself", module, _bad((arguments, keywords))))

    handles = [module.register_forward_hook(look, with_kwargs=True) for module in names]
    try:
        with torch.no_grad():
            batches.call(model, inputs, targets)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _kl_culprit(model: nn.Module) -> str:
    bad = [name for name, module in model.named_modules() if name and _bad(kl_sum(module))]
    # Names are listed outermost first, so the last of the first chain is the innermost culprit.
    chain = [name for name in bad if name.startswith(bad[0])] if bad else []
    inner = max(chain, key=len, default="")
    return f", because of layer {inner!r}; try a lower lr or clip=1.0" if inner else ""


def _bad(value: Any) -> bool:
    tensors = (leaf for _, leaf in batches.leaves(value) if isinstance(leaf, Tensor))
    return any((t.is_floating_point() or t.is_complex()) and not bool(torch.isfinite(t).all()) for t in tensors)
