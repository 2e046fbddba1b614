"""Predictions for images of many sizes, and in threads that come and go, must not fill the memory."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import torch
from torch import nn

import leanbayes as lb
from tests.kernels import soak

from .outcome import Outcome

CASES = 2
MEGABYTES, OF_THREADS = 200, 50


def case(seed: int) -> Outcome:
    """2,000 predictions over 200 sizes; every other case 500 threads with one prediction each."""
    if seed % 2:
        grown, most = soak.over_threads(500) / soak.MB, OF_THREADS
    else:
        grown, most = growth(predictions=2000, sizes=200, seed=seed), MEGABYTES
    return Outcome(f"memory grew: {grown:.0f} MB" if grown > most else None)


def growth(predictions: int, sizes: int, seed: int = 0) -> float:
    """By how many MB the process has grown at most, from the first predictions to the last."""
    torch.manual_seed(seed)
    # large activations in front and many weights behind, so that whatever is kept of a size is large
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(4),
        nn.Conv2d(64, 256, 3, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    lb.bayesianize_(net, lb.SparseSubspace(density=0.15))
    shapes = [(40 + i % 20, 40 + i // 20) for i in range(sizes)]
    order = [shapes[i % sizes] for i in range(predictions)]
    start = 0.0
    for i, size in enumerate([shapes[0], shapes[-1], *order]):
        lb.predict(net, torch.randn(5, 3, *size), samples=1, seed=i, task="classification")
        if i == 1:
            gc.collect()
            start = _resident()
    return max(_resident(), _peak()) - start


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _peak() -> float:
    # not ru_maxrss, which a process takes over from the one that started it
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10
