"""Coordinate descent: patches and shared parameters trained in turn."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from ...checks import one_of, whole_number
from ...errors import TrainingError
from ...training.callbacks import Callback, State
from .layer import Patched


class CoordinateDescent(Callback):
    """Trains patches and shared parameters in turns, holding one group fixed while the other moves (patching, C.2).

    every: how long a turn is, in epochs or steps. unit: "epoch" or "step". first: which group begins.

    What is held gets no gradient, so that momentum and weight decay leave it alone as well. Turns follow from the
    number of the step or epoch: a resumed run goes on with the group whose turn it was.

    >>> import torch
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = lb.bayesianize_(model, {nn.BatchNorm1d: lb.Patch()})
    >>> data = torch.randn(16, 4), torch.randint(2, (16,))
    >>> _ = lb.fit(model, data, epochs=2, callbacks=[CoordinateDescent()], progress=False)
    """

    def __init__(
        self, every: int = 1, unit: Literal["epoch", "step"] = "epoch", first: Literal["patch", "shared"] = "shared"
    ) -> None:
        every = whole_number("CoordinateDescent.every", every)
        one_of("CoordinateDescent.unit", unit, ("epoch", "step"))
        one_of("CoordinateDescent.first", first, ("patch", "shared"))
        self.every, self.unit, self.first = every, unit, first

    def fit_start(self, state: State) -> None:
        patches, shared = parameter_groups(state.model)
        if not patches or not shared:
            raise TrainingError(
                f"CoordinateDescent: expected a model with patches and with parameters beside them, received one with "
                f"{len(patches)} patched and {len(shared)} shared parameters; convert some layers with lb.Patch, or "
                "train without this callback"
            )

    def turn(self, state: State) -> Literal["patch", "shared"]:
        """The group that is trained at this step."""
        number = state.epoch if self.unit == "epoch" else state.step
        other: dict[Any, Any] = {"patch": "shared", "shared": "patch"}
        return self.first if number // self.every % 2 == 0 else other[self.first]  # type: ignore[no-any-return]

    def after_backward(self, state: State) -> None:
        patches, shared = parameter_groups(state.model)
        for parameter in shared if self.turn(state) == "patch" else patches:
            parameter.grad = None


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters of patches, and all the others: for coordinate descent, or two rates in one optimiser.

    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    >>> _ = lb.bayesianize_(model, {nn.BatchNorm1d: lb.Patch()})
    >>> [len(group) for group in parameter_groups(model)]
    [2, 2]
    """
    layers = (module for module in model.modules() if isinstance(module, Patched))
    mixtures = (q for layer in layers for q in layer.posteriors.values() if not q.zero)  # DropConnect has one value
    patched = {id(p) for q in mixtures for p in q.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    return [p for p in trained if id(p) in patched], [p for p in trained if id(p) not in patched]
