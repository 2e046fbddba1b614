"""Every method on two gloo processes: other data and other noise on each, the same parameters on both."""

import subprocess
import sys
from pathlib import Path

import torch

from leanbayes.registry import methods

ROOT = Path(__file__).parents[2]


def test_two_processes_keep_identical_parameters_and_draw_different_noise(tmp_path):
    command = [sys.executable, "-m", "tests.contract.gloo"]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=ROOT) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for method in methods():
        (first, noise), (second, other) = (rank[method] for rank in ranks)
        assert all(torch.equal(first[name], second[name]) for name in first), method
        assert not (methods()[method].random and torch.equal(noise, other)), method
