from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from leanbayes import data
from leanbayes.data import catalogue
from leanbayes.errors import DataError


def test_every_name_has_one_line_and_a_builder() -> None:
    for name, line in data.names().items():
        assert line
        assert "\n" not in line
        assert callable(importlib.import_module(f"leanbayes.data.{catalogue.entry(name).module}").build)


def test_listing_names_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, leanbayes.data as d; d.names(); print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("CIFAR-10", "cifar10"),
        ("FashionMNIST", "fashion-mnist"),
        ("fashion_mnist", "fashion-mnist"),
        ("digit", "digits"),
        ("boston", "uci/boston"),
        ("not-digits/letter", "not-digits/letters"),
    ],
)
def test_an_unknown_name_gets_the_close_one(typed: str, meant: str) -> None:
    with pytest.raises(DataError, match=f"received '{typed}'; did you mean '{meant}'"):
        data.load(typed)


@pytest.mark.parametrize("typed", ["", "qqqqqqqq", None, 3])
def test_an_unknown_name_without_a_close_one_lists_all(typed: object) -> None:
    with pytest.raises(DataError, match=r"known: digits, .*uci/yacht"):
        data.load(typed)  # type: ignore[arg-type]


def test_public_names_exist_and_others_do_not() -> None:
    assert dir(data) == sorted(data.__all__)
    assert all(getattr(data, name) is not None for name in data.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        data.nothing  # type: ignore[attr-defined]
