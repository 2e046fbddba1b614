"""Checks that the tensors of a file fit a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..convert.plan import plan
from ..errors import ArtifactError
from ..method import Method
from .saving import aliases_of

_BUILD = "build the model that was saved"
_FEW = 2**20  # parameters that any model may get, whatever its file holds


def check_counts(methods: Mapping[str, Method], names: Collection[str], where: str) -> None:
    """Every member of an ensemble has tensors in the file; a plan of members that have none would take long."""
    for layer, method in methods.items():
        members = method.networks
        stored = sum(name.startswith(f"{layer}.") for name in names) if members > 1 else 1
        if stored < members:
            raise ArtifactError(
                f"{where}: layer {layer!r}: expected tensors for {members} members, received {stored} in all; the file "
                "contradicts itself, copy or download it again"
            )


def check_size(model: nn.Module, rules: Mapping[nn.Module, Any], elements: int, where: str) -> None:
    """The conversion would not make far more parameters than the file has numbers; counted on copies without values.

    Whether they are exactly those of the file is looked at when the model is converted, which says more.
    """
    if (wanted := plan(model, rules).parameters_after) > 4 * elements + _FEW:  # type: ignore[arg-type]
        raise ArtifactError(
            f"{where}: the methods it names give this model {wanted:,} parameters, and the file holds {elements:,} "
            f"numbers; {_BUILD}, or copy the file again"
        )


def check_fit(have: Mapping[str, Tensor], full: Mapping[str, Tensor], aliases: Mapping[str, str], where: str) -> None:
    """Names, shapes, dtypes and ties of the file are those of the model."""
    if missing := next((name for name in have if name not in full), None):
        raise ArtifactError(f"{where}: the model has {missing!r}, the file does not; {_BUILD}")
    if extra := next((name for name in full if name not in have), None):
        raise ArtifactError(f"{where}: the file has {extra!r}, the model does not; {_BUILD}")
    for name, tensor in have.items():
        if full[name].shape != tensor.shape:
            raise ArtifactError(
                f"{where}: {name}: expected shape {tuple(tensor.shape)} as in the model, received "
                f"{tuple(full[name].shape)}; {_BUILD}"
            )
        if full[name].dtype != tensor.dtype:
            raise ArtifactError(
                f"{where}: {name}: expected {tensor.dtype} as in the model, received {full[name].dtype}; "
                f"model.to({full[name].dtype}) first"
            )
    ties = aliases_of(have)
    if odd := next((name for name in [*ties, *aliases] if ties.get(name) != aliases.get(name)), None):
        here, there = (f"tied to {t[odd]!r}" if odd in t else "on its own" for t in (ties, aliases))
        raise ArtifactError(f"{where}: {odd!r} is {here} in the model and {there} in the file; tie both or neither")


def check_finite(have: Mapping[str, Tensor], full: Mapping[str, Tensor], where: str) -> None:
    """All numbers are finite, but for logarithms of 0 and what is not finite in the model too (a mask of -inf)."""
    for name, tensor in full.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        values = _plain(tensor)
        if bool((finite := torch.isfinite(values)).all()):
            continue
        own = _plain(have[name].detach().cpu())
        wrong = ~(finite | _logarithm_of_zero(name, values) | (own == values) | (own.isnan() & values.isnan()))
        if bool(wrong.any()):
            first = values[wrong][0].item()
            raise ArtifactError(
                f"{where}: {name}: expected finite numbers, received {first} in {int(wrong.sum())} of "
                f"{wrong.numel()} places: the training diverged, or the file was changed; "
                "load(..., allow_nonfinite=True) takes it as it is"
            )


def _plain(tensor: Tensor) -> Tensor:
    """As numbers that comparisons know; some of eight bits they do not."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.float() if tensor.element_size() == 1 else tensor


def _logarithm_of_zero(name: str, tensor: Tensor) -> Tensor:
    """Where a scale or probability of 0 is stored by its logarithm, or by what softplus takes to 0; logits: 1 too."""
    last = name.rpartition(".")[2]
    if last.endswith("logits"):
        return torch.isinf(tensor)
    return torch.isneginf(tensor) if "log" in last or last == "rho" else torch.zeros_like(tensor, dtype=torch.bool)
