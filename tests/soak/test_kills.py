"""A sample of the killed runs; `python -m tests.soak kills` runs many more."""

from collections import Counter

from leanbayes import registry
from tests.soak import kills
from tests.soak.worker import outcomes

CASES = range(0, 13 * 6, 10)  # all kinds of loaders, eight of the methods


def test_killed_runs_end_as_undisturbed_ones():
    notes, failures = Counter[str](), []
    for seed, outcome in outcomes("kills", CASES):
        notes.update(outcome.notes)
        if outcome.failure is not None:
            failures.append(f"python -m tests.soak kills --case {seed} --show   # {outcome.failure}")
    assert not failures, "\n".join(failures)
    assert kills.weakness(len(CASES), notes) is None
    assert notes.keys() >= kills.KINDS.keys()


def test_every_registered_method_takes_part():
    assert kills.METHODS.keys() == {
        name for name, cls in registry.methods().items() if cls.__module__.startswith("lean")
    }
