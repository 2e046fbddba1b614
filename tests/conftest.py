"""What every test starts from: one thread a worker, and a fixed seed."""

import os

# Some virtual machines announce AMX and do not allow it, which kills the process in oneDNN's 16-bit kernels.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from hypothesis import settings

from leanbayes.kernels import library

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True)  # the same examples in every run
settings.load_profile("repeatable")
if not library.FILE.exists():  # no compiler when it was installed: the twins run, and need not say so in every test
    os.environ["LEANBAYES_KERNELS"] = "off"


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
