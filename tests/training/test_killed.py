"""kill -9 at any moment, resume: the same weights to the last bit."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from leanbayes.convert.apply import bayesianize_
from leanbayes.methods import MeanField
from leanbayes.training import checkpoint
from leanbayes.training.callbacks import State
from leanbayes.training.fit import fit
from leanbayes.training.schedules import warmup

EPOCHS, DATA, BATCH = 20, 30, 4
STEPS = EPOCHS * 8  # seven batches of four and one of two


class Augmented(Dataset):
    """Random at every turn, from each of the generators that people use."""

    def __len__(self) -> int:
        return DATA

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        jitter = torch.rand(6) + float(np.random.rand()) + random.random()
        return x + 0.1 * jitter, int(x.sum() > 0)


def model() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    bayesianize_(net, MeanField())
    return net


class Tell:
    """Tells the parent how far this process has come."""

    def __init__(self, done: Any) -> None:
        self.done = done

    def before_step(self, state: State) -> None:
        self.done.value += 1


def run(folder: str, done: Any) -> None:
    torch.set_num_threads(1)
    net = model()
    fit(
        net,
        DataLoader(Augmented(), batch_size=BATCH, shuffle=True),
        val=DataLoader(Augmented(), batch_size=BATCH),
        val_samples=1,
        epochs=EPOCHS,
        lr=1e-2,
        scheduler=lambda o: OneCycleLR(o, 0.02, total_steps=STEPS),
        scheduler_every="step",
        kl_weight=warmup(0, 1, steps=STEPS // 2),
        clip=1.0,
        early_stopping=100,
        callbacks=[Tell(done)],
        checkpoint=f"{folder}/run.ckpt",
        checkpoint_every=1,
        resume=True,
        log=f"{folder}/run.jsonl",
        progress=False,
    )
    torch.save(net.state_dict(), f"{folder}/final.pt")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "final.pt", weights_only=True)


def without_time(folder: Path) -> list[str]:
    return [line.split(', "seconds"')[0] for line in (folder / "run.jsonl").read_text().splitlines()]


@pytest.mark.long  # tests/soak/test_kills.py has some of all methods
def test_killed_at_ten_random_moments(processes, tmp_path):
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    calm.mkdir()
    rough.mkdir()

    def start(folder: Path) -> Any:
        done = processes.Value("i", 0, lock=False)
        child = processes.Process(target=run, args=(str(folder), done))
        child.start()
        return child, done

    undisturbed, _ = start(calm)
    chance, reached = random.Random(0), []
    for _ in range(10):
        child, done = start(rough)
        steps, delay = chance.randint(0, STEPS // 10), chance.uniform(0, 0.02)
        while done.value < steps and child.is_alive():
            time.sleep(0.001)
        time.sleep(delay)  # anywhere within a step, or within the start
        assert child.is_alive()
        child.kill()
        child.join()
        if (rough / "run.ckpt").exists():
            reached.append(checkpoint.read(rough / "run.ckpt")["position"]["step"])  # whole, whenever it was killed
    last, _ = start(rough)
    for child in (undisturbed, last):
        child.join()
        assert child.exitcode == 0
    assert len(set(reached)) >= 5, "the kills fell at different steps"

    expected, received = weights(calm), weights(rough)
    assert expected.keys() == received.keys()
    for name in expected:
        assert torch.equal(expected[name], received[name]), name
    assert without_time(calm) == without_time(rough)
    assert len(without_time(calm)) == EPOCHS
    assert sorted(p.name for p in rough.iterdir()) == ["final.pt", "run.ckpt", "run.ckpt.previous", "run.jsonl"]


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    stray = [".run.ckpt.00000000.tmp", ".run.jsonl.ffffffff.tmp"]
    others = [".other.jsonl.ffffffff.tmp", "run.jsonl.tmp", ".run.ckpt.big.00000000.tmp", ".run.ckpt.x.tmp"]
    for name in stray + others:
        (tmp_path / name).write_bytes(b"half")
    files = {"checkpoint": tmp_path / "run.ckpt", "log": tmp_path / "run.jsonl"}
    fit(model(), DataLoader(Augmented(), batch_size=BATCH), epochs=1, progress=False, **files)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "run.ckpt", "run.ckpt.previous", "run.jsonl"])
