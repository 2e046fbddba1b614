"""The short form of `make soak`: memory stays flat over image sizes and over threads."""

from __future__ import annotations

import sys

import pytest
from tests.kernels import soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_many_image_sizes_need_no_more_memory_than_the_largest():
    largest, _, highest = soak.over_sizes(list(range(24, 88, 3)), 50)
    assert highest - largest < 50 * soak.MB


def test_threads_that_end_leave_no_memory_behind():
    assert soak.over_threads(40) < 30 * soak.MB
