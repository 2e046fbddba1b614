"""Data sets by name: the embedded digits, and readers and downloads of the standard on-disk layouts.

Names load lazily, so that `names` (which the command line lists) costs no import of numpy or torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .catalogue import names as names

if TYPE_CHECKING:
    from .cifar import read_cifar as read_cifar
    from .dataset import DataSet as DataSet, loaders as loaders
    from .idx import read_idx as read_idx
    from .lidc import read_lidc as read_lidc
    from .loading import load as load
    from .medmnist import read_medmnist as read_medmnist
    from .preparation import Preparation as Preparation
    from .reading import read as read
    from .svhn import read_svhn as read_svhn
    from .uci import read_uci as read_uci

_HOMES = {
    "DataSet": "dataset",
    "load": "loading",
    "loaders": "dataset",
    "Preparation": "preparation",
    "read": "reading",
    "read_cifar": "cifar",
    "read_idx": "idx",
    "read_lidc": "lidc",
    "read_medmnist": "medmnist",
    "read_svhn": "svhn",
    "read_uci": "uci",
}
__all__ = [
    "DataSet",
    "Preparation",
    "load",
    "loaders",
    "names",
    "read",
    "read_cifar",
    "read_idx",
    "read_lidc",
    "read_medmnist",
    "read_svhn",
    "read_uci",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
