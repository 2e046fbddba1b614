"""Two gloo processes, started as torchrun does it, and processes that fit starts by itself."""

import contextlib
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes import registry
from leanbayes.convert.apply import bayesianize_
from leanbayes.errors import ConfigError, TrainingError
from leanbayes.likelihoods import Regression
from leanbayes.methods import MeanField, SparseSubspace
from leanbayes.priors import Normal
from leanbayes.sampling import using
from leanbayes.training import snapshot
from leanbayes.training.callbacks import HOOKS, Callback, State, callbacks
from leanbayes.training.fit import fit
from leanbayes.training.natural_gradient import NaturalGradientSGD

TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "progress": False}


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


def _process(rank: int, port: int, function: Callable[..., None], folder: Path, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    function(folder, **{**TWO, **options})


@pytest.fixture
def two(processes: Any, tmp_path: Path) -> Callable[..., Path]:
    """Runs a function in two processes that know each other."""

    def run(function: Callable[..., None], **options: Any) -> Path:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [
            processes.Process(target=_process, args=(rank, port, function, tmp_path, options)) for rank in range(2)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(timeout=300)  # a busy machine takes long to import torch
            if child.is_alive():
                child.kill()
        assert [child.exitcode for child in children] == [0, 0]
        return tmp_path

    return run


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


def test_two_processes_equal_one_on_the_joined_batch(two):
    folder = two(mean_only, batch_size=8)
    mean_only(folder, batch_size=16, progress=False)
    one, first, second = load(folder, "one"), load(folder, "0"), load(folder, "1")
    close(first["model"], second["model"], 0)
    close(one["model"], first["model"], 1e-5)
    torch.testing.assert_close(one["std"], first["std"], rtol=1e-5, atol=1e-5)
    assert one["nll"] == pytest.approx(first["nll"], rel=1e-5)
    assert first["val"] == second["val"] == pytest.approx(one["val"], rel=1e-5)
    moved = bayesian().state_dict()
    only_kl = [name for name in moved if "unused" in name]
    assert only_kl
    assert all(not torch.equal(moved[name], first["model"][name]) for name in only_kl)


def test_accumulation_synchronises_once_a_step_and_equals_the_joined_batch(two):
    folder = two(mean_only, batch_size=4, accumulate=2)
    mean_only(folder, batch_size=16, progress=False)
    one, first, second = load(folder, "one"), load(folder, "0"), load(folder, "1")
    close(first["model"], second["model"], 0)
    close(one["model"], first["model"], 1e-5)
    assert one["nll"] == pytest.approx(first["nll"], rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_divided_parameters_train_as_whole_ones(two, accumulate):
    folder = two(mean_only, strategy="fsdp", batch_size=8 // accumulate, accumulate=accumulate)
    mean_only(folder, batch_size=16, progress=False)
    one, first, second = load(folder, "one"), load(folder, "0"), load(folder, "1")
    close(first["model"], second["model"], 0)
    close(one["model"], first["model"], 1e-5)
    torch.testing.assert_close(one["std"], first["std"], rtol=1e-5, atol=1e-5)
    assert one["nll"] == pytest.approx(first["nll"], rel=1e-5)
    assert first["val"] == second["val"] == pytest.approx(one["val"], rel=1e-5)


def test_noise_differs_and_parameters_do_not(two):
    folder = two(noisy)
    first, second = load(folder, "0"), load(folder, "1")
    assert not (first["noise"] == second["noise"]).any()
    close(first["model"], second["model"], 0)


def test_a_process_holds_half_of_the_optimizer_and_gets_whole_weights_back(two):
    folder = two(parts, strategy="fsdp")
    first, second = load(folder, "0"), load(folder, "1")
    close(first["model"], second["model"], 0)
    assert first["kept"]
    assert first["steps"] == 6
    assert first["held"] == 0.5
    start = torch.nn.Linear(5, 8)
    torch.manual_seed(0)
    start.reset_parameters()
    assert torch.equal(first["model"]["0.weight"], start.weight)


def test_methods_train_with_divided_parameters_bit_by_bit_as_with_whole_ones(two):
    found = load(two(both_ways), "0")
    assert {"MeanField", "Nested", "Patch", "Variance", "VariationalDropout"} <= found.keys()
    for whole, divided in found.values():
        close(whole, divided, 0)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_process_continues_where_it_was(two, strategy):
    folder = two(interrupted, strategy=strategy)
    for rank in "01":
        content = load(folder, rank)
        close(content["straight"], content["again"], 0)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_nan_on_one_process_stops_both(two, strategy):
    folder = two(poisoned, strategy=strategy)
    assert "inputs of this batch" in (folder / "0.txt").read_text()
    assert "another process" in (folder / "1.txt").read_text()


@pytest.mark.parametrize(
    ("fault", "message", "elsewhere"),
    [
        ("labels", "DataError", "another process"),
        ("val labels", "DataError", "another process"),
        ("datum", "datum 0 cannot be read", "another process"),
        ("lengths", "as many batches on every process", "as many batches on every process"),
        ("checkpoint of one", "1 do; use a shared folder", "1 do; use a shared folder"),
        ("write", "no space left", "another process"),
        *((hook, "the disk of the callback", "another process") for hook in HOOKS),
    ],
)
def test_a_failure_on_one_process_is_raised_by_all(two, fault, message, elsewhere):
    folder = two(failing, fault=fault)
    assert message in (folder / "0.txt").read_text()
    assert elsewhere in (folder / "1.txt").read_text()


def _own_processes(folder: Path) -> None:
    torch.set_num_threads(1)
    model = bayesian()
    with using(mean_only=True):
        options = {**TWO, "strategy": "ddp_fork"}
        result = fit(model, DataLoader(data(), batch_size=8), task=Regression("learned"), epochs=2, **options)
    save(folder, model=model.state_dict(), nll=result["nll"])


def test_fit_starts_processes_and_brings_the_weights_home(processes, tmp_path):
    child = processes.Process(target=_own_processes, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 0
    model = bayesian()
    with using(mean_only=True):
        fit(model, DataLoader(data(), batch_size=16), task=Regression("learned"), epochs=2, progress=False)
    close(load(tmp_path, "one")["model"], model.state_dict(), 1e-5)


def test_what_needs_whole_weights_between_steps_is_refused():
    model = nn.Sequential(nn.Linear(5, 2))
    bayesianize_(model, SparseSubspace(density=0.5))
    with pytest.raises(ConfigError, match=r'a method without callbacks .*use strategy="ddp"'):
        fit(model, data(), strategy="fsdp", devices=2, accelerator="cpu")
    with pytest.raises(ConfigError, match="NaturalGradientSGD, which decomposes"):
        fit(nn.Linear(5, 2), data(), strategy="fsdp", devices=2, accelerator="cpu", optimizer=NaturalGradientSGD)
