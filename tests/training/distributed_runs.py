"""What runs in each of several processes, and writes what it saw into a folder."""

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes import registry
from leanbayes.convert.apply import bayesianize_
from leanbayes.errors import TrainingError
from leanbayes.likelihoods import Regression
from leanbayes.methods import MeanField
from leanbayes.priors import Normal
from leanbayes.sampling import using
from leanbayes.training import snapshot
from leanbayes.training.callbacks import HOOKS, Callback, State, callbacks
from leanbayes.training.fit import fit


def data(n: int = 48) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x, x.sum(1) + 0.1 * torch.randn(n, generator=generator))


class Unused(nn.Module):
    """A posterior that no output depends on: only the KL reaches its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def bayesian(norm: bool = False) -> nn.Module:
    torch.manual_seed(1)
    middle = [nn.BatchNorm1d(5)] if norm else []
    model = nn.Sequential(nn.Linear(5, 5), *middle, nn.Tanh(), Unused())
    bayesianize_(model, MeanField(std=0.1, prior=Normal(1.0)))  # a prior whose KL reaches means and spreads
    return model


def mean_only(folder: Path, batch_size: int, **where: Any) -> None:
    """Noise off, no BatchNorm: two processes must equal one on the joined batch."""
    model, likelihood = bayesian(), Regression("learned", std=0.5)
    with using(mean_only=True):
        loader = DataLoader(data(), batch_size=batch_size, shuffle=True)
        result = fit(model, loader, val=data(21), task=likelihood, epochs=3, lr=0.01, clip=1.0, **where)
    save(folder, model=model.state_dict(), std=likelihood.raw_std.detach(), nll=result["nll"], val=result["val_nll"])


def noisy(folder: Path, **where: Any) -> None:
    """Noise on: different draws in each process, the same parameters and buffers."""

    class Record(Callback):
        def __init__(self) -> None:
            self.noise: list[torch.Tensor] = []

        def before_step(self, state: State) -> None:
            self.noise.append(torch.randn(3))  # what the first layer would have drawn

    record, model = Record(), bayesian(norm=True)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    fit(model, loader, val=data(21), task="regression", epochs=2, lr=0.01, callbacks=[record], **where)
    save(folder, model=model.state_dict(), noise=torch.stack(record.noise))


def parts(folder: Path, **where: Any) -> None:
    """Divided parameters of a network whose last layer is Bayesian: what a process holds, and what it gets back."""
    torch.manual_seed(int(os.environ["RANK"]))  # the first process decides where training starts
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model[0].weight.requires_grad_(False)
    bayesianize_(model, {"3": MeanField(std=0.1)})
    before, held = dict(model.named_parameters()), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    class Look(Callback):
        def after_step(self, state: State) -> None:
            states = [v for s in state.optimizer.state.values() for v in s.values() if v.ndim]
            held.append(sum(v.to_local().numel() for v in states) / sum(v.numel() for v in states))

    x, y = data().tensors
    loader = DataLoader(TensorDataset(x, (y > 0).long()), batch_size=8, shuffle=True)
    fit(model, loader, epochs=2, optimizer=optimizer, callbacks=[Look()], **where)
    kept = [p is before[name] for name, p in model.named_parameters()]
    shapes = [s["exp_avg"].shape == p.shape for p, s in optimizer.state.items()]
    save(folder, model=model.state_dict(), held=max(held), kept=all(kept) and all(shapes), steps=len(held))


def both_ways(folder: Path, **where: Any) -> None:
    """Every method whose weights are left alone between steps, its noise on, with whole and with divided parameters."""
    x, y = data(16).tensors
    found = {}
    for name, method in registry.methods().items():
        for strategy in ("ddp", "fsdp"):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
            bayesianize_(model, method())
            if not callbacks(model):
                fit(model, (x, (y > 0).long()), epochs=1, batch_size=4, **{**where, "strategy": strategy})
                tensors = {k: v for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
                found.setdefault(name, []).append(tensors)
    save(folder, **found)


def interrupted(folder: Path, **where: Any) -> None:
    """Stopped in the middle of the second epoch and continued: every process gets its own generators back."""

    class Stop(Callback):
        def __init__(self, at: int | None = None) -> None:
            self.at = at

        def after_step(self, state: State) -> None:
            if state.step == self.at:
                raise KeyboardInterrupt

    def train(name: str, stop: Stop) -> nn.Module:
        model, loader = bayesian(norm=True), DataLoader(data(), batch_size=8, shuffle=True)
        path = folder / f"{name}.ckpt"
        options = {"checkpoint": path, "checkpoint_every": 1, "resume": True, "callbacks": [stop]}
        fit(model, loader, task="regression", epochs=2, **options, **where)
        return model

    straight = train("straight", Stop())
    with contextlib.suppress(KeyboardInterrupt):
        train("rough", Stop(at=4))
    torch.distributed.barrier()
    save(folder, straight=straight.state_dict(), again=train("rough", Stop()).state_dict())


def poisoned(folder: Path, **where: Any) -> None:
    """A NaN in the data of one process stops both."""
    x, y = data(16).tensors
    x = x.clone()
    x[0] = torch.nan
    try:
        fit(bayesian(), DataLoader(TensorDataset(x, y), batch_size=8), task="regression", epochs=1, **where)
    except TrainingError as error:
        (folder / f"{os.environ['RANK']}.txt").write_text(str(error))


class Broken(TensorDataset):
    """Cannot read one datum."""

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            raise OSError("datum 0 cannot be read")
        return super().__getitem__(index)


class Raises(Callback):
    """Fails in one hook of one process; the others have no such callback."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.fail)

    def fail(self, state: State) -> None:
        raise OSError("the disk of the callback is full")


def failing(folder: Path, fault: str, **where: Any) -> None:
    """Something goes wrong on one process alone, and every process says so; nobody waits."""
    rank = int(os.environ["RANK"])
    x, y = data(16).tensors
    labels = (y > 0).long()
    if fault in ("labels", "val labels"):
        labels[0] = 7  # the first datum is one of process 0
    good, bad = TensorDataset(x, (y > 0).long()), TensorDataset(x, labels)
    train: Any = DataLoader({"labels": bad, "datum": Broken(*good.tensors)}.get(fault, good), batch_size=4)
    if fault == "lengths":
        train = [(x[:4], good.tensors[1][:4])] * (2 + rank)
    elif fault == "checkpoint of one":
        (folder / str(rank)).mkdir()
        if rank == 0:
            (folder / "0" / "run").write_bytes(b"not a checkpoint")
        where |= {"checkpoint": folder / str(rank) / "run", "resume": True}
    elif fault == "write":
        where |= {"checkpoint": folder / "run"}
    elif fault in HOOKS and rank == 0:
        where |= {"callbacks": [Raises(fault)]}
    if fault == "val labels":  # not in the first batch, which is looked at before the first step
        x, labels = x[[1] * 4 + [0]], labels[[1] * 4 + [0]]
        where |= {"val": DataLoader(TensorDataset(x, labels), batch_size=1)}
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    bayesianize_(model, MeanField(std=0.1))
    written, write = [], snapshot.checkpoint.write

    def full(*args: Any, **options: Any) -> None:
        written.append(write(*args, **options))
        if len(written) > 1:
            raise OSError("no space left on device")

    if fault == "write":
        snapshot.checkpoint.write = full
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fit(model, train, num_data=16, task="classification", epochs=2, **where)
        except Exception as error:
            (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")


def save(folder: Path, **content: Any) -> None:
    torch.save(content, folder / f"{os.environ.get('RANK', 'one')}.pt")


def load(folder: Path, name: str) -> Any:
    return torch.load(folder / f"{name}.pt", weights_only=True)
