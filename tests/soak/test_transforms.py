"""A sample of the random networks under second derivatives, torch.func and torch.compile."""

from __future__ import annotations

from collections import Counter

import pytest

from leanbayes.kernels import library
from tests.soak import transforms
from tests.soak.worker import outcomes

pytestmark = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
FIRST, LAST = 1, 25  # the first and every fiftieth are compiled, which takes seconds


def test_the_compiled_path_says_what_the_dense_path_says_or_refuses():
    notes, failures = Counter[str](), []
    for seed, outcome in outcomes("transforms", range(FIRST, LAST)):
        notes.update(outcome.notes)
        if outcome.failure is not None:
            failures.append(f"python -m tests.soak transforms --case {seed} --show   # {outcome.failure}")
    assert not failures, "\n".join(failures)
    assert all(notes[transform.__name__] for transform in transforms.TRANSFORMS)
    assert notes["kernels ran"] >= 6
    assert transforms.weakness(LAST - FIRST, notes) is None
