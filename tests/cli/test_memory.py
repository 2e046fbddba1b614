"""Memory that tensors have freed stays with the process: fewer page faults, counted by the system."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from leanbayes.cli.memory import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    raise SystemExit(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ran = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, env=plain, check=False)
    if ran.returncode == 3:
        pytest.skip("another C library")
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_a_tensor_made_again_costs_no_page_faults() -> None:
    assert _faults("kept") < _faults("returned") / 4  # 8 times 64 MB; all but the first for nothing


def test_settings_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from leanbayes.cli.memory import keep_freed_memory

    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert keep_freed_memory() is False
