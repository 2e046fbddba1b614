"""Memory that tensors have freed stays with the process, by malloc's own account."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
import torch
from leanbayes.cli.memory import keep_freed_memory
if not hasattr(ctypes.CDLL(None), "mallinfo2") or (sys.argv[1] == "kept" and not keep_freed_memory()):
    raise SystemExit(3)
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Account = type("Account", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Account
torch.ones(2**24)
print(mallinfo2().fordblks // 2**20)
"""


def _megabytes_left(how: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ran = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, env=plain, check=False)
    if ran.returncode == 3:
        pytest.skip("another C library")
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_what_a_tensor_of_64_megabytes_frees_is_there_for_the_next() -> None:
    assert _megabytes_left("kept") >= 64 > _megabytes_left("returned")


def test_settings_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from leanbayes.cli.memory import keep_freed_memory

    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert keep_freed_memory() is False
