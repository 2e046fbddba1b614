"""The memory part in its short form, in a process of its own: the peak of this one may be from other tests."""

import subprocess
import sys

import pytest

from leanbayes.kernels import library
from tests.soak import memory
from tests.soak.worker import ROOT

PROGRAM = "from tests.soak import memory; print(memory.growth(predictions=100, sizes=20))"


@pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
def test_predictions_for_many_sizes_stay_within_the_memory():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) < memory.MEGABYTES
