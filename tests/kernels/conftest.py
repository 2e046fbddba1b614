"""Tests of the compiled kernels run where they were built; LEANBAYES_REQUIRE_KERNELS=1 makes a failure of the rest."""

from __future__ import annotations

import os

import pytest

from leanbayes.kernels import library


@pytest.fixture(autouse=True)
def _built():
    if (why := library.reason()) is not None:
        if os.environ.get("LEANBAYES_REQUIRE_KERNELS"):
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(params=range(len(library.LEVELS)), ids=library.LEVELS)
def level(request):
    """Every instruction set of this machine in turn."""
    native = library.library()
    best = native.leanbayes_level(-1)
    if native.leanbayes_level(request.param) != request.param:
        pytest.skip("this machine does not have it")
    yield request.param
    native.leanbayes_level(best)
