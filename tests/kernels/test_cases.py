"""A seeded sample of the random cases; `make sanitize` runs many more of them under the sanitizers."""

from __future__ import annotations

import pytest
from tests.kernels import broken, cases


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_valid_cases_equal_torch(first):
    for seed in range(first, first + 10):
        cases.valid(seed)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_invalid_cases_are_refused(first):
    for seed in range(first, first + 10):
        broken.invalid(seed)
