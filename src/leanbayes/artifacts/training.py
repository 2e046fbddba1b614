"""Checks of the metadata that `leanbayes train` writes, since commands scale data and build networks by it.

It is the mapping under "training" in the metadata; one with other fields is somebody's own, and passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from .. import config, models
from ..data.preparation import Preparation
from ..errors import ArtifactError

FIELDS = frozenset(
    [
        "data",
        "split",
        "network",
        "seed",
        "input_shape",
        "classes",
        "mean",
        "std",
        "y_mean",
        "y_std",
        "preparation",
        "val_fraction",
        "test_fraction",
    ]
)
_LEAST, _MOST = 2.0**-126, 2.0**127  # of what a float32 holds in full precision
_MOST_SIZE, _MOST_DEPTH, _MOST_ELEMENTS = 100_000, 300, 2**26
_DEPTHS = ("depth", "blocks", "layers")
_FEW = 2**22  # parameters that any network may have, whatever its file holds


def check_training(document: Mapping[str, Any], tensors: Mapping[str, Any], where: str) -> None:
    """Refuse metadata that no training could have written; tensors: dtype and shape by name, from the header."""
    metadata = document.get("metadata")
    said = metadata.get("training") if isinstance(metadata, dict) else None
    if not isinstance(said, dict) or not said.keys() <= FIELDS:
        return
    for field, (fine, expected) in _CHECKS.items():
        if field in said and said[field] is not None and not fine(said[field]):
            raise _refusal(where, field, expected, said[field])
    mean, std, shape, classes = (said.get(field) for field in ("mean", "std", "input_shape", "classes"))
    if mean is not None and std is not None and len(mean) != len(std):
        raise _refusal(where, "std", f"as many numbers as mean has, {len(mean)}", std)
    if mean is not None and shape is not None and len(mean) not in (1, shape[0]):
        raise _refusal(where, "mean", f"a number for each of {shape[0]} channels or features", mean)
    if (network := said.get("network")) is not None and ":" not in network["name"]:
        outputs = next(
            (network["options"][k] for k in ("num_classes", "out_features") if k in network["options"]), None
        )
        if classes is not None and type(outputs) is int and len(classes) != max(outputs, 2):
            raise _refusal(where, "classes", f"a name for each of {max(outputs, 2)} classes", classes)
        _check_network(network, document, tensors, where)


def _check_network(
    network: Mapping[str, Any], document: Mapping[str, Any], tensors: Mapping[str, Any], where: str
) -> None:
    """The network can be built, and is not far larger than what the file holds."""
    for key, value in network["options"].items():
        numbers = value if isinstance(value, list) else [value]
        most = _MOST_DEPTH if key in _DEPTHS else _MOST_SIZE
        if len(numbers) > _MOST_DEPTH or not all(_is_number(n, most) or isinstance(n, (str, bool)) for n in numbers):
            raise _refusal(where, "network", f"{key} of at most {most:,}", value)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            built = models.build(network["name"], **network["options"])
    except Exception as error:  # whatever ill-made options stumble over
        raise _refusal(
            where, "network", f"one of the library's with its options ({str(error)[:200]})", network
        ) from error
    stored = sum(math.prod(entry["shape"]) for entry in tensors.values())
    needed = sum(parameter.numel() for parameter in built.parameters())
    if needed > max(_FEW, stored * _reduction(document)):
        raise _refusal(where, "network", f"one of about the {stored:,} numbers that the file holds", network)


def _reduction(document: Mapping[str, Any]) -> float:
    """How many times more parameters the network may have than the file, which may be sparse or cut."""
    conversions = document.get("conversions")
    found = conversions.values() if isinstance(conversions, dict) else ()
    densities = [c["density"] for c in found if isinstance(c, dict) and _is_number(c.get("density"), 1.0)]
    return (1.5 / max(min(densities, default=1.0), 0.001)) * (64 if document.get("sliced") else 1)


def _is_number(value: Any, most: float = _MOST) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -most <= value <= most


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(map(_is_number, values))


def _is_shape(value: Any) -> bool:
    sizes = isinstance(value, list) and 1 <= len(value) <= 5 and all(type(n) is int and n >= 1 for n in value)
    return sizes and math.prod(value) <= _MOST_ELEMENTS


def _is_preparation(value: Any) -> bool:
    try:
        return isinstance(config.from_dict(value), Preparation)
    except Exception:  # whatever an ill-made config stumbles over
        return False


def _is_network(value: Any) -> bool:
    known = isinstance(value, dict) and value.keys() == {"name", "options"}
    return known and isinstance(value["name"], str) and isinstance(value["options"], dict)


_CHECKS: dict[str, tuple[Any, str]] = {
    "data": (lambda v: isinstance(v, str) and len(v) <= 200, "the name of a data set"),
    "split": (_is_count, "a whole number from 0"),
    "seed": (_is_count, "a whole number from 0"),
    "network": (_is_network, "the name and the options of a network"),
    "input_shape": (_is_shape, "the sizes of one datum"),
    "classes": (lambda v: isinstance(v, list) and bool(v) and all(isinstance(n, str) for n in v), "names of classes"),
    "mean": (_are_numbers, "finite numbers"),
    "std": (lambda v: _are_numbers(v) and min(v) >= _LEAST, "finite numbers above 0"),
    "preparation": (_is_preparation, "what leanbayes.data.read learned"),
    "val_fraction": (lambda v: _is_number(v) and 0 <= v < 1, "a fraction"),
    "test_fraction": (lambda v: _is_number(v) and 0 <= v < 1, "a fraction"),
    "y_mean": (_is_number, "a finite number"),
    "y_std": (lambda v: _is_number(v) and v >= _LEAST, "a finite number above 0"),
}


def _refusal(where: str, field: str, expected: str, received: Any) -> ArtifactError:
    return ArtifactError(
        f"{where}: metadata 'training': {field}: expected {expected}, received {str(received)[:80]}; "
        "the file was changed, train or download it again"
    )
