"""One pass of a model on moments: which modules have rules, and what is sampled instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ... import batches, sampling
from ...layers.contract import BayesianLayer
from ...posteriors.base import Posterior
from ...walk import modules
from .carried import Carried, carried_in, joined, laws, of_sample, settle, wrapped
from .law import Draws, Moments
from .rules import NoRule, NotCarried, Rule, rule_of

LARGEST = 2**26
"""Numbers in the draws of one activation: where there would be more, fewer data go through at once."""


class TooLarge(Exception):
    """Samples of so many data do not fit."""


class Walk:
    """Takes a batch through a model once.

    samples: how many are drawn where a layer has no rule. noise: makes that of the random sites, for each sample by
    ``id(site)``. seed: of the values that are drawn from moments.
    reasons: where samples had to be drawn, by layer, and why.
    """

    def __init__(self, model: nn.Module, samples: int, seed: int, noise: Callable[[], list[Any]]) -> None:
        self.model, self.samples, self.noise = model, samples, noise
        self.inside: list[nn.Module] = []
        self.reasons: dict[str, str] = {}
        self.in_sample = False
        self.generator = torch.Generator().manual_seed(sampling.mix(seed, -2))

    def __call__(self, inputs: Any) -> Tensor | Moments | Draws:
        """What is known of the output; a tensor where nothing was random."""
        with (
            self._intercepted(),
            self._named(),
            sampling.using(estimator="weight"),
            sampling.kept_scales(),
            sampling.watching(self._drawn),
            torch.compiler.set_stance("force_eager"),
        ):
            out = batches.output_tensor(batches.call(self.model, inputs))
        if not isinstance(out, Carried):
            return out
        settle([out])
        return out.law  # type: ignore[return-value]

    def say(self, what: str, reason: str) -> None:
        """Note that samples are drawn here."""
        self.reasons.setdefault(self._where(), f"{what}: {reason}")

    def _where(self) -> str:
        """The name of the module that runs, the model's class for itself."""
        name = self._name(self.inside[-1]) if self.inside else ""
        return name or type(self.model).__name__

    def _name(self, module: nn.Module) -> str:
        return next((name for name, one in self.model.named_modules(remove_duplicate=False) if one is module), "")

    def draw_(self, x: Carried) -> None:
        """Values from the moments of a tensor, which has these from now on: whoever reads it again gets the same."""
        settle([x])
        if isinstance(x.law, Draws):
            return
        assert isinstance(x.law, Moments)
        mean = x.law.mean
        if self.samples * mean.numel() > LARGEST and mean.shape[:1] > (1,):
            raise TooLarge
        noise = torch.randn((self.samples, *mean.shape), generator=self.generator, dtype=mean.dtype)
        x.law = Draws(x.law.drawn(noise.to(mean.device)))

    def _drawn(self, site: sampling.Site) -> None:
        if not self.in_sample:
            raise NotCarried(f"{self._where()}: {type(site).__name__} is drawn outside of a layer with a rule")

    @contextlib.contextmanager
    def _intercepted(self) -> Iterator[None]:
        """A block in which modules with a rule, and random ones without, are called by way of this walk."""
        before: list[tuple[nn.Module, Any]] = []
        for module in modules(self.model):
            found = rule_of(module)
            random = isinstance(module, (BayesianLayer, sampling.Site)) and not isinstance(module, Posterior)
            if found is not None or random:
                before.append((module, module.__dict__.get("forward")))
        for module, _ in before:
            module.__dict__["forward"] = partial(self._forward, module, rule_of(module), module.forward)
        try:
            yield
        finally:
            for module, own in before:
                del module.__dict__["forward"]
                if own is not None:
                    module.__dict__["forward"] = own

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """A block in which `inside` says which module runs."""

        def enter(module: nn.Module, args: Any) -> None:
            self.inside.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self.inside:
                self.inside.pop()

        hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _forward(self, module: nn.Module, found: Rule | None, original: Any, *args: Any, **kwargs: Any) -> Any:
        carried = list(carried_in((args, kwargs)))
        if self.in_sample:
            return original(*args, **kwargs)
        sampled = any(isinstance(x.law, Draws) for x in carried)
        if not sampled:
            settle(carried)
            try:
                if found is None:
                    raise NoRule("its draws are not independent Gaussians")
                return wrapped(self, found(module, *laws(args), **laws(kwargs)))
            except NoRule as reason:
                self.say(type(module).__name__, str(reason))
        for x in carried:
            self.draw_(x)
        results = []
        for s, noise in enumerate(self.noise()):
            self.in_sample = True
            try:
                with sampling.using(estimator="weight", draws=noise):
                    results.append(original(*of_sample(args, s), **of_sample(kwargs, s)))
            finally:
                self.in_sample = False
        return joined(self, results, self._name(module))
