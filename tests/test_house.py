"""The source tree keeps its order: counters within their limits, imports in one direction."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
specification = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
house = importlib.util.module_from_spec(specification)
specification.loader.exec_module(house)


@pytest.fixture(scope="module")
def counts():
    return house.counts()


@pytest.mark.parametrize("name", house.LIMITS)
def test_a_counter_stays_within_its_limit(counts, name):
    assert counts[name] <= house.LIMITS[name]


def test_the_counters_count():
    tree = house.ast.parse(
        "from .a import b\ndef f(x):\n    from .c import d\n    return getattr(x, 'y') or hasattr(x, 'z')"
    )
    assert (house.imports_in_functions(tree), house.probes(tree)) == (1, 2)
    assert house.families(house.modules())["sparse"] == {"Rigl", "SparseSubspace"}


def test_imports_go_one_way(monkeypatch):
    importlinter = pytest.importorskip("importlinter.cli")
    monkeypatch.chdir(ROOT)
    assert importlinter.lint_imports() == 0
