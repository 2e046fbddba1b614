"""`BayesianLayer`: the interface of the layers that methods put into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from ..method import Method
    from ..posteriors.base import Posterior


class BayesianLayer(nn.Module):
    """Base class of layers that replace a module.

    shell: a module whose class and options are those of the one that it replaced.
    method: what made it, where `bayesianize_` put it into a model; a part of another layer has none.
    noise_scale: what `scale_noise_` has multiplied an option of the method by.
    statistics: "component" where a norm layer keeps running statistics for each of several components.
    resting_members: modules inside of it that a pass does not use, as those of an ensemble whose turn it is not.
    gradient_seen, kl_counted: whether a gradient has reached it, and whether its KL was computed; see `kl_watch`.
    """

    shell: nn.Module
    method: Method | None = None
    resting_members: list[nn.Module] | tuple[()] = ()
    noise_scale: float = 1.0
    statistics: str = "shared"
    gradient_seen: bool = False
    kl_counted: bool = False

    @property
    def has_kl(self) -> bool:
        """Whether training must weigh a KL of it."""
        return False

    def posterior(self, name: str) -> Posterior | None:
        """The posterior of a parameter by name, or None if it is not random."""
        held = self._modules.get("posteriors")
        return None if held is None else held._modules.get(name)  # type: ignore[return-value]

    def named_posteriors(self) -> dict[str, Posterior]:
        """The distribution of each random parameter by name."""
        held = self._modules.get("posteriors")
        return {} if held is None else dict(held._modules)  # type: ignore[arg-type]

    def scale_noise_(self, factor: float) -> Callable[[], None] | None:
        """Multiply the spread of random parts besides the posteriors; returns a function that undoes it, or None.

        A layer whose spread is an option of its method, not a parameter, multiplies ``noise_scale`` too: a run that is
        resumed brings it to what it was, since checkpoints hold parameters alone.
        """
        return None

    def active_parameters(self) -> int | None:
        """The stored parameters still in use, of the whole layer; None counts those of its parts."""
        return None

    def restored(self) -> nn.Module:
        """The plain module with the means as its parameters; raises if a posterior has no mean."""
        raise NotImplementedError

    def deployed(self, made: dict[int, Posterior]) -> nn.Module:
        """The module that replaces it in an extracted network: plain, or a layer that stores less.

        made: what has been made of posteriors so far, by their identity, so that tied ones stay tied.
        """
        return self.restored()

    def at_fixed_width(self) -> nn.Module:
        """The layer, still random, for a network of fixed width; by default itself."""
        return self

    def check_saveable(self, model: nn.Module) -> None:
        """Raise an ArtifactError if a file could not store how the layers of the model belong together."""

    @property
    def drops_inputs(self) -> bool:
        """Whether whole channels were pruned, so that `extract` removes channels that nothing reads."""
        return False

    def inputs_read(self, outputs: list[int]) -> list[bool] | None:
        """Which of its inputs these outputs depend on; None for all."""
        return None


def original(module: nn.Module) -> nn.Module:
    """The module whose class and options a layer has: the shell of a Bayesian layer, or the module itself."""
    return module.shell if isinstance(module, BayesianLayer) else module


def option(described: Any, *names: str) -> Any:
    """The value of the first of these attributes that an object has and that is not None, else None.

    >>> option(nn.Conv1d(2, 3, 1), "in_features", "in_channels"), option(nn.ReLU(), "groups")
    (2, None)
    """
    found = (getattr(described, name, None) for name in names)
    return next((value for value in found if value is not None), None)


def features(module: nn.Module, side: str) -> int | None:
    """The number of inputs or outputs of a layer of torch, or None if it has none.

    >>> features(nn.Conv1d(2, 3, 1), "outputs")
    3
    """
    names = ("in_features", "in_channels") if side == "inputs" else ("out_features", "out_channels", "embedding_dim")
    found: int | None = option(original(module), *names, "num_features")
    return found


def hook_owner(hook: Any) -> Any:
    """The object whose method a hook is, or the hook itself."""
    return option(hook, "__self__") or hook


def remove_hooks(model: nn.Module, *kinds: type) -> list[Any]:
    """Remove the forward hooks whose owners are of these classes, and return the owners."""
    owners = []
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook_owner(hook), kinds)]:
                owners.append(hook_owner(hooks.pop(key)))
                for options in (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called):
                    options.pop(key, None)
    return owners
