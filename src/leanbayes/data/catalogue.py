"""What data sets exist, what each is in one line, and which file builds it; no torch and no numpy here."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from ..errors import DataError


class Entry(NamedTuple):
    """A line of the catalogue: `module` is the file of this folder whose ``build(request)`` reads the set."""

    module: str
    description: str


_ENTRIES = {
    "digits": Entry("digits", "1,797 handwritten digits, 8x8 grey, 10 classes; embedded, the default"),
    "not-digits/letters": Entry(
        "notdigits", "360 letters drawn with the digits' own pre-processing; embedded, no labels"
    ),
    "not-digits/noise": Entry("notdigits", "360 images of uniform noise, 8x8; embedded, no labels"),
    "not-digits/photos": Entry("notdigits", "360 patches of two photographs, 8x8 grey; embedded, no labels"),
    "not-digits/shuffled": Entry("notdigits", "360 test digits, the pixels of each shuffled; embedded, no labels"),
    "mnist": Entry("idx", "MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey, 10 classes"),
    "fashion-mnist": Entry("idx", "Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28x28 grey, 10 classes"),
    "kmnist": Entry("idx", "Kuzushiji-MNIST: 60,000 + 10,000 cursive characters, 28x28 grey, 10 classes"),
    "cifar10": Entry("cifar", "CIFAR-10: 50,000 + 10,000 photographs, 32x32 colour, 10 classes"),
    "cifar100": Entry("cifar", "CIFAR-100: 50,000 + 10,000 photographs, 32x32 colour, 100 classes"),
    "svhn": Entry("svhn", "SVHN: 73,257 + 26,032 house-number digits, 32x32 colour, 10 classes; non-commercial use"),
    "pneumoniamnist": Entry("medmnist", "PneumoniaMNIST: 4,708 + 524 + 624 chest X-rays, 28x28 grey, 2 classes"),
    "lidc": Entry("lidc", "LIDC: lung nodules, 64x64 grey, masks by four annotators; needs your own lidc64.npz"),
    "uci/boston": Entry("uci", "UCI Boston housing: 506 rows, 13 features, 20 published splits"),
    "uci/concrete": Entry("uci", "UCI concrete strength: 1,030 rows, 8 features, 20 published splits"),
    "uci/energy": Entry("uci", "UCI energy efficiency: 768 rows, 8 features, 20 published splits"),
    "uci/kin8nm": Entry("uci", "Kin8nm robot arm: 8,192 rows, 8 features, 20 published splits"),
    "uci/naval": Entry("uci", "UCI naval propulsion: 11,934 rows, 16 features, 20 published splits"),
    "uci/power": Entry("uci", "UCI power plant: 9,568 rows, 4 features, 20 published splits"),
    "uci/protein": Entry("uci", "UCI protein structure: 45,730 rows, 9 features, 5 published splits"),
    "uci/wine": Entry("uci", "UCI red wine quality: 1,599 rows, 11 features, 20 published splits"),
    "uci/yacht": Entry("uci", "UCI yacht hydrodynamics: 308 rows, 6 features, 20 published splits"),
}


def names() -> dict[str, str]:
    """Every name that `load` knows, with a line on what it is.

    >>> names()["digits"]
    '1,797 handwritten digits, 8x8 grey, 10 classes; embedded, the default'
    """
    return {name: entry.description for name, entry in _ENTRIES.items()}


def entry(name: str) -> Entry:
    """The catalogue's line for a name; an unknown one is refused with the closest known.

    >>> entry("CIFAR-10")
    Traceback (most recent call last):
    leanbayes.errors.DataError: expected the name of a data set, received 'CIFAR-10'; did you mean 'cifar10'? ...
    """
    if isinstance(name, str) and name in _ENTRIES:
        return _ENTRIES[name]
    # People write FashionMNIST, fashion_mnist, CIFAR-10: spelling is compared without case and punctuation.
    plain = {_plain(known): known for known in _ENTRIES}
    close = difflib.get_close_matches(_plain(str(name)), plain, n=1)
    hint = f"did you mean {plain[close[0]]!r}? " if close else ""
    raise DataError(f"expected the name of a data set, received {name!r}; {hint}known: {', '.join(_ENTRIES)}")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
