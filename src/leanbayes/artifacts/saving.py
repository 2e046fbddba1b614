"""Saving a model: one safetensors file, JSON in its header, no pickle.

The header holds what the tensors alone do not say: which layer was converted by which method, the likelihood, which
tensors are tied, and a digest of the whole file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import _version, checks, config, container, likelihoods
from ..checks import short
from ..convert import record
from ..convert.folding import folded
from ..convert.slicing import sizes
from ..convert.staged import Staged
from ..errors import ArtifactError
from ..files import check_target, write_bytes
from ..layers.contract import BayesianLayer
from ..walk import unwrapped


def save(
    model: nn.Module, path: str | os.PathLike[str], *, task: Any = None, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write a model, Bayesian or plain, to one safetensors file, atomically.

    It holds the state_dict, the methods by layer, the likelihood it was fitted to, and `metadata`: what JSON can say.
    task: that likelihood, where a loop of your own trained the model and `follow` was not told: ``elbo.likelihood``.
    What is not in the state_dict is not saved: the class of the model, non-persistent buffers, train() or eval().

    >>> import tempfile
    >>> import leanbayes as lb
    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> _ = lb.bayesianize_(model, lb.MeanField())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(model, folder + "/model.safetensors", metadata={"data": "digits"})
    ...     fresh = lb.load(path, into=nn.Sequential(nn.Linear(4, 2)))
    >>> bool((fresh[0].posteriors["weight"].rho == model[0].posteriors["weight"].rho).all())
    True
    """
    check_target(path)
    bare = bare_model(model)
    for layer in bare.modules():
        if isinstance(layer, BayesianLayer):
            layer.check_saveable(bare)
    state = tensors_of(bare)
    aliases = aliases_of(state)
    found = record.get(bare)
    said = None if task is None else likelihoods.likelihood(task).to_dict()
    document = {
        "leanbayes": _version.__version__,
        "torch": str(torch.__version__),
        "conversions": {name: config.to_dict(method) for name, method in record.conversions(bare).items()},
        "likelihood": said if task is not None else None if found is None else found.likelihood,
        **({"temperatures": found.temperatures} if found is not None and found.temperatures else {}),
        **({} if found is None or found.conformal is None else {"conformal": config.to_dict(found.conformal)}),
        **({"classes": list(found.classes)} if found is not None and found.classes else {}),
        **({"sliced": cut} if (cut := sizes(bare)) else {}),
        **({"folded": norms} if (norms := folded(bare)) else {}),
        **({"stages": bare.described()} if isinstance(bare, Staged) else {}),
        "aliases": aliases,
        "metadata": plain_metadata(metadata),
    }
    tensors = {name: _dense(tensor) for name, tensor in state.items() if name not in aliases}
    return write_bytes(path, container.pack(tensors, document))


def bare_model(model: nn.Module) -> nn.Module:
    """The model inside wrappers that put a prefix before every name."""
    checks.module("model", model, error=ArtifactError)
    return unwrapped(model)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict, its tensors themselves, checked to hold values."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ArtifactError(f"{name} has no shape yet; run one batch through the lazy module first")
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise ArtifactError(
                f"{name}: expected a tensor, received {type(tensor).__name__} (the module's get_extra_state), which "
                "would need a pickle; keep it in a buffer instead"
            )
        if tensor.is_meta:
            raise ArtifactError(f"{name} is on the meta device and holds no values; model.to_empty(device='cpu') first")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ArtifactError(f"{name}: expected a dense tensor, received a sparse or quantised one; .to_dense() it")
    return state


def aliases_of(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that are another one under a second name, with the first name."""
    first: dict[Any, str] = {}
    found = {}
    for name, tensor in state.items():
        key: Any = id(tensor)
        if tensor.numel():
            key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if (owner := first.setdefault(key, name)) != name:
            found[name] = owner
    return found


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    if metadata is not None and not (isinstance(metadata, Mapping) and all(isinstance(k, str) for k in metadata)):
        raise ArtifactError(f"metadata: expected a mapping with text as keys, received {short(metadata)}")
    try:
        return json.loads(json.dumps(dict(metadata or {}), allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"metadata: expected what JSON can say ({error}); use text, numbers, lists, mappings"
        ) from error
