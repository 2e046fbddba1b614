"""The embedded digits: 1,797 images, the test part of "Optical Recognition of Handwritten Digits".

E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, CC BY 4.0; the same arrays as scikit-learn's.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from .arrays import Arrays
from .files import Request
from .splits import hold_out

FULL_SCALE = 16  # a pixel counts the dark ones in a 4x4 block of the 32x32 original
_TEST_FRACTION = 0.2


def build(request: Request) -> Arrays:
    """Images (n, 1, 8, 8), labels (n,): 1,438 to train on (and cut a validation part from) and 359 to test on.

    The test part does not depend on the seed. It is stratified by class, not by writer, which is unknown.
    """
    del request
    images, labels = _images()
    train, test = hold_out(labels, _TEST_FRACTION, seed=0)
    parts = {"train": (images[train], labels[train]), "test": (images[test], labels[test])}
    return Arrays("classification", parts, tuple("0123456789"), FULL_SCALE)


@functools.cache
def _images() -> tuple[np.ndarray, np.ndarray]:
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as data:
        return data["images"][:, None], data["labels"].astype(np.int64)
