"""Data sets by name: the embedded digits, and readers and downloads of the standard on-disk layouts.

Names load lazily, so that `names` (which the command line lists) costs no import of numpy or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import attach
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
    from .synthetic import blobs as blobs
    from .uci import read_uci as read_uci

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "catalogue": "names",
        "cifar": "read_cifar",
        "dataset": "DataSet loaders",
        "idx": "read_idx",
        "lidc": "read_lidc",
        "loading": "load",
        "medmnist": "read_medmnist",
        "preparation": "Preparation",
        "reading": "read",
        "svhn": "read_svhn",
        "synthetic": "blobs",
        "uci": "read_uci",
    },
)
