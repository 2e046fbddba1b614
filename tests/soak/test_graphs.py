"""A sample of the random networks; `make soak` runs many more."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from leanbayes.kernels import library
from leanbayes.layers.bayes import BayesLayer
from leanbayes.layers.sparse import dense_path
from tests.soak import compare, graphs
from tests.soak.worker import outcomes

pytestmark = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
CASES = 80


def test_the_compiled_path_says_what_the_dense_path_says():
    notes, failures = Counter[str](), []
    for seed, outcome in outcomes("graphs", range(CASES)):
        notes.update(outcome.notes)
        if outcome.failure is not None:
            failures.append(f"python -m tests.soak graphs --case {seed} --show   # {outcome.failure}")
    assert not failures, f"{len(failures)} of {CASES} networks:\n" + "\n".join(failures)
    assert graphs.weakness(CASES, notes) is None


def test_a_seed_repeats_a_network():
    assert graphs.generate(7) == graphs.generate(7)
    assert str(graphs.generate(7)) != str(graphs.generate(8))


def test_wrong_numbers_are_noticed(monkeypatch):
    """The comparison has power: an error of a thousandth on one side fails nearly every network."""
    real, exact = BayesLayer.forward, []

    def slightly_wrong(self, *args, **kwargs):
        out = real(self, *args, **kwargs)
        return out if exact else out * 1.001

    @contextlib.contextmanager
    def other_side():
        exact.append(True)
        yield
        exact.pop()

    monkeypatch.setattr(BayesLayer, "forward", slightly_wrong)
    monkeypatch.setattr(compare, "dense_path", other_side)
    with dense_path():  # both sides, but for the error
        found = [graphs.case(seed) for seed in range(1, 25)]
    assert sum(outcome.failure is not None for outcome in found) >= 20
