"""`bayesianize_` and `restore_`: converting a model in place, and back."""

from __future__ import annotations

from torch import nn

from .. import checks
from ..errors import ConversionError
from ..layers.contract import BayesianLayer
from ..layers.kl_watch import watch
from .implementation import implementation
from .plan import Plan, converted
from .pretrained import guard_
from .record import conversions, ensure
from .selectors import Rules

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


def bayesianize_(model: nn.Module, rules: Rules, *, strict: bool = False) -> Plan:
    """Replace the selected layers of a model by Bayesian ones, in place; pretrained weights become the means.

    All replacements are made before the first is put in, so an error leaves the model as it was.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> report = bayesianize_(model, {nn.Linear: lb.MeanField()})
    >>> report.converted
    ['0', '2']
    """
    done, layers = converted(model, rules, strict=strict)
    replacements: dict[int, nn.Module] = {}
    for entry in done.entries:
        if entry.method is not None:
            module, layer = model.get_submodule(entry.name), layers[entry.name]
            layer.method = entry.method
            carry_hooks(module, layer)
            replacements[id(module)] = layer
    swap_(model, replacements)
    for method in dict.fromkeys(layer.method for layer in layers.values() if layer.method is not None):
        implementation(method).attach(model)
    for layer in layers.values():
        watch(layer)
    guard_(model)
    ensure(model)
    return done


def restore_(model: nn.Module) -> nn.Module:
    """Restore the plain modules, with the posterior means as their parameters; raises if a posterior has no mean.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> before = model[0].weight.clone()
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> bool((restore_(model)[0].weight == before).all())
    True
    """
    plain: dict[int, nn.Module] = {}
    tied: dict[int, nn.Parameter] = {}
    checks.module("model", model, error=ConversionError)
    methods = conversions(model)
    for name in methods:
        if not name:
            raise ConversionError("the model itself is a Bayesian layer, which cannot be replaced in place")
        module = model.get_submodule(name)
        assert isinstance(module, BayesianLayer)
        try:
            restored = module.restored()
        except ConversionError as error:
            raise ConversionError(f"{name}: {error}") from error
        for parameter, posterior in module.named_posteriors().items():
            value = restored._parameters[parameter]
            assert value is not None
            restored._parameters[parameter] = tied.setdefault(id(posterior), value)
        carry_hooks(module, restored)
        plain[id(module)] = restored
    if not plain:
        raise ConversionError("expected a model with Bayesian layers, found none; nothing to restore")
    swap_(model, plain)
    for method in dict.fromkeys(methods.values()):
        implementation(method).detach(model)
    guard_(model)
    return model


def swap_(model: nn.Module, replacements: dict[int, nn.Module]) -> None:
    """Replace modules, given by their identity, everywhere in a model."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and id(child) in replacements:
                parent._modules[name] = replacements[id(child)]


def carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """Copy the hooks of a module to its replacement."""
    for name in _HOOKS:
        value = vars(old).get(name)
        if value or value is False:
            setattr(new, name, value)
