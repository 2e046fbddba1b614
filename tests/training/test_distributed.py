"""Two gloo processes, started as torchrun does it, and processes that fit starts by itself."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from leanbayes.convert.apply import bayesianize_
from leanbayes.errors import ConfigError
from leanbayes.likelihoods import Regression
from leanbayes.methods import SparseSubspace
from leanbayes.sampling import using
from leanbayes.training.callbacks import HOOKS
from leanbayes.training.fit import fit
from leanbayes.training.natural_gradient import NaturalGradientSGD

from .distributed_runs import (
    bayesian,
    both_ways,
    data,
    failing,
    interrupted,
    load,
    mean_only,
    noisy,
    parts,
    poisoned,
    save,
)

TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "progress": False}


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
