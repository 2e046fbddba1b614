"""The contenders of step.py: leanbayes and other libraries, brought to the same posterior N(w, 0.02^2)."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

STD = 0.02
NESTED, SKIPPING = "leanbayes nested", "leanbayes nested, skipping"
Gradients = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Contender:
    """A model, its KL as its own library computes it, and where the gradients that are compared can be found."""

    model: nn.Module
    kl: Callable[[nn.Module], Any] | None = None
    gradients: Callable[[nn.Module], Gradients] | None = None


def contenders(model: nn.Module) -> tuple[dict[str, Callable[[], Contender]], dict[str, str]]:
    """Builders by name, and how to install those that are missing."""
    found = {f"leanbayes {e}": lambda e=e: leanbayes(model, e) for e in ("local", "weight", "flipout")}
    found |= {name: lambda skip=skip: nested(model, skip) for name, skip in ((NESTED, False), (SKIPPING, True))}
    peers = {
        "bayesian-torch reparameterization": ("bayesian_torch", lambda: bayesian_torch(model, "Reparameterization")),
        "bayesian-torch flipout": ("bayesian_torch", lambda: bayesian_torch(model, "Flipout")),
        "torchbnn": ("torchbnn", lambda: torchbnn(model)),
    }
    how = {"bayesian_torch": "pip install --no-deps bayesian-torch", "torchbnn": "pip install torchbnn"}
    missing = {}
    for name, (package, build) in peers.items():
        if importlib.util.find_spec(package) is None:
            missing[name] = how[package]
        else:
            found[name] = build
    return found, missing


def leanbayes(model: nn.Module, estimator: Any) -> Contender:
    """Mean-field by one of the three estimators."""
    import leanbayes as lb
    from leanbayes.posteriors import Gaussian

    mine = copy.deepcopy(model)
    lb.bayesianize_(mine, lb.MeanField(std=STD, estimator=estimator))

    def gradients(net: nn.Module) -> Gradients:
        posteriors = [q for q in net.modules() if isinstance(q, Gaussian)]
        return {"mean": [_of(q.loc) for q in posteriors], "sigma": [_of(q.rho) / _slope(q.rho) for q in posteriors]}

    return Contender(mine, lb.kl_sum, gradients)


def nested(model: nn.Module, skip: bool) -> Contender:
    """The same mean-field weights in a learned order; or in a fixed one, where dropped channels are not computed."""
    import leanbayes as lb
    from leanbayes.kl import unscaled_sum

    mine = copy.deepcopy(model)
    tails: Any = "uniform" if skip else "learned"
    lb.bayesianize_(mine, lb.Nested(weights=lb.MeanField(std=STD), tails=tails, skip=skip))

    def kl(net: nn.Module) -> Tensor:
        tails = unscaled_sum(net)  # its weight does not matter for what it costs
        return lb.kl_sum(net) if tails is None else lb.kl_sum(net) + tails

    return Contender(mine, kl)


def bayesian_torch(model: nn.Module, kind: str) -> Contender:
    """Converted by its own `dnn_to_bnn`, then given the same means and sigmas."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    mine = copy.deepcopy(model)
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(mine, {**prior, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    originals = dict(model.named_modules())
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
    with torch.no_grad():
        for name, layer in mine.named_modules():
            for parameter, suffix in (("weight", "kernel"), ("weight", "weight"), ("bias", "bias")):
                mu, rho = (layer._parameters.get(f"{part}_{suffix}") for part in ("mu", "rho"))
                if mu is None or rho is None:
                    continue
                mu.copy_(originals[name]._parameters[parameter])  # type: ignore[arg-type]
                rho.fill_(torch.tensor(STD).expm1().log())
                pairs.append((mu, rho))

    def gradients(net: nn.Module) -> Gradients:
        return {"mean": [_of(mu) for mu, _ in pairs], "sigma": [_of(rho) / _slope(rho) for _, rho in pairs]}

    return Contender(mine, get_kl_loss, gradients)


def torchbnn(model: nn.Module) -> Contender:
    """Its layers in the place of the model's: it has no converter that keeps the weights."""
    import torchbnn as bnn

    mine = copy.deepcopy(model)
    layers: list[Any] = []
    for parent in list(mine.modules()):
        for name, child in parent.named_children():
            fresh: Any
            if isinstance(child, nn.Conv2d):
                args = (child.in_channels, child.out_channels, child.kernel_size, child.stride, child.padding)
                fresh = bnn.BayesConv2d(0.0, 1.0, *args, bias=child.bias is not None)
            elif isinstance(child, nn.Linear):
                fresh = bnn.BayesLinear(0.0, 1.0, child.in_features, child.out_features, bias=child.bias is not None)
            else:
                continue
            with torch.no_grad():
                for part in ("weight", "bias"):
                    if (old := child._parameters.get(part)) is not None:
                        getattr(fresh, f"{part}_mu").copy_(old)
                        getattr(fresh, f"{part}_log_sigma").fill_(torch.tensor(STD).log())
            setattr(parent, name, fresh)
            layers.append(fresh)
    kl = bnn.BKLLoss(reduction="sum", last_layer_only=False)

    def gradients(net: nn.Module) -> Gradients:
        found: Gradients = {"mean": [], "sigma": []}
        for layer in layers:
            for part in ("weight", "bias"):
                mu, log_sigma = (layer._parameters.get(f"{part}_{end}") for end in ("mu", "log_sigma"))
                if mu is not None:
                    found["mean"].append(_of(mu))
                    found["sigma"].append(_of(log_sigma) / log_sigma.detach().exp())
        return found

    return Contender(mine, kl, gradients)


def _of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().clone()


def _slope(rho: Tensor) -> Tensor:
    """d sigma / d rho of sigma = softplus(rho): gradients are compared in sigma, whatever its parametrisation."""
    return rho.detach().sigmoid()
