"""One run on one checkpoint, files that must not be replaced, and disks that cannot be written to."""

import builtins
import errno
import json
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import files
from leanbayes.errors import ArtifactError, ConfigError, LeanBayesError, LeanBayesWarning, TrainingError
from leanbayes.training import checkpoint, lock
from leanbayes.training.callbacks import Callback

X, Y = torch.randn(8, 3), torch.arange(8) % 2


def train(path=None, epochs=2, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, lb.fit(model, (X, Y), epochs=epochs, batch_size=4, progress=False, checkpoint=path, **options)


class Call(Callback):
    """Calls a function after a step."""

    def __init__(self, function, step=2):
        self.function, self.step = function, step

    def after_step(self, state):
        if state.step == self.step:
            self.function()


def hold(path, ready, go):
    with lock.held(path):
        ready.set()
        go.wait(30)


def test_two_runs_on_one_checkpoint(tmp_path, processes):
    path = tmp_path / "run.ckpt"
    ready, go = processes.Event(), processes.Event()
    child = processes.Process(target=hold, args=(path, ready, go))
    child.start()
    assert ready.wait(60)
    with pytest.raises(TrainingError, match=rf"process {child.pid} on host .* is writing it; wait for it or stop it"):
        train(path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt.lock"]
    child.kill()  # what it left is taken over at once
    child.join()
    assert (tmp_path / "run.ckpt.lock").exists()
    train(path)
    assert not (tmp_path / "run.ckpt.lock").exists()


def test_two_runs_in_one_process(tmp_path):
    path, caught = tmp_path / "run.ckpt", []

    def second():
        try:
            train(path, resume=True)
        except TrainingError as error:
            caught.append(str(error))

    def hold():  # `fit` itself is refused in another thread, whatever it writes
        try:
            with lock.held(path):
                pass
        except TrainingError as error:
            caught.append(str(error))

    def other_thread():
        thread = threading.Thread(target=hold)
        thread.start()
        thread.join()

    train(path, callbacks=[Call(second), Call(other_thread)])
    assert len(caught) == 2
    assert all("this process itself is writing it" in text for text in caught)
    train(path, epochs=3, resume=True, callbacks=[Call(int), Call(int)])


def test_a_number_of_a_process_that_lives_is_no_lock(tmp_path):
    """A killed run's number may belong to another process by now, this one even."""
    path = tmp_path / "run.ckpt"
    file = tmp_path / "run.ckpt.lock"
    for pid in (os.getpid(), os.getppid(), 1):
        file.write_text(json.dumps({"pid": pid, "host": os.uname().nodename, "since": "2020-01-01"}))
        with lock.held(path):
            assert json.loads(file.read_text())["pid"] == os.getpid()
        assert not file.exists()
    for rubbish in (b"", b"\xff\xfe", b"[]", b'{"pid": "x"}'):
        file.write_bytes(rubbish)
        with lock.held(path):
            pass


def test_a_lock_of_another_host_is_said(tmp_path):
    file = tmp_path / "run.ckpt.lock"
    file.write_text(json.dumps({"pid": 7, "host": "elsewhere", "since": "2020-01-01"}))
    with pytest.warns(LeanBayesWarning, match="process 7 on host 'elsewhere' since 2020-01-01, and taken over"):
        train(tmp_path / "run.ckpt")


def test_a_lock_that_vanished_in_between_is_made_anew(tmp_path, monkeypatch):
    real, calls = lock._lock, []

    def late(handle):
        if not calls:  # its owner ended and removed it after this process had opened it
            (tmp_path / "run.ckpt.lock").unlink()
        calls.append(handle)
        real(handle)

    monkeypatch.setattr(lock, "_lock", late)
    with lock.held(tmp_path / "run.ckpt"):
        assert (tmp_path / "run.ckpt.lock").exists()
    assert len(calls) == 2


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def none(handle):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", none)
    with pytest.warns(LeanBayesWarning, match="no locks"):
        train(tmp_path / "run.ckpt")


def test_the_temporary_file_of_another_run_stays(tmp_path):
    live = tmp_path / ".run.big.0123abcd.tmp"
    live.write_bytes(b"being written")
    train(tmp_path / "run")
    assert live.exists()
    long = ["x" * 230 + end for end in "ab"]  # too long to be repeated in the name of a temporary file
    assert len({files._stem(Path(name)) for name in long}) == 2
    for name in (*long, "é" * 120):
        assert files.write_bytes(tmp_path / name, b"abc").read_bytes() == b"abc"


@pytest.fixture
def special(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(os.devnull)
    return [Path(os.devnull), tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"]


def test_devices_and_directories_are_never_replaced(special):
    kinds = [os.stat(path).st_mode for path in special]
    model = nn.Linear(2, 2)
    for path in special:
        for action in (
            lambda path=path: train(path),
            lambda path=path: train(log=path),
            lambda path=path: lb.save(model, path),
            lambda path=path: files.write_text(path, "x"),
        ):
            with pytest.raises((ConfigError, ArtifactError), match=r"directory|device"):
                action()
    assert [os.stat(path).st_mode for path in special] == kinds


@pytest.mark.parametrize("name", ["x" * 300, "x" * 252, "a\0b"])
def test_names_that_cannot_be(tmp_path, name):
    with pytest.raises(LeanBayesError, match=r"another path|choose|expected"):
        train(tmp_path / name)
    if len(name) == 252:
        files.write_bytes(tmp_path / name, b"")  # it can be, but nothing beside it
    with pytest.raises(ArtifactError, match=r"choose|expected"):
        files.write_bytes(tmp_path / name, b"", keep_previous=True)
    assert not [p for p in tmp_path.iterdir() if p.suffix in (".tmp", ".lock")]


def failing(monkeypatch, code, only):
    """Writing to files whose name contains `only` fails."""
    real = builtins.open

    def opened(file, mode="r", *args, **kwargs):
        if only in str(file) and mode != "rb" and mode != "r":
            raise OSError(code, os.strerror(code), str(file))
        return real(file, mode, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", opened)


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_disk_that_cannot_be_written_to(tmp_path, monkeypatch, code):
    """A full disk or a read-only mount, at the start and later."""
    path = tmp_path / "run.ckpt"
    with monkeypatch.context() as patch:
        failing(patch, code, "run.ckpt")
        with pytest.raises(TrainingError, match=rf"{os.strerror(code)}.*choose another path"):
            train(path)
        with pytest.raises(ArtifactError, match=rf"{os.strerror(code)}.*choose a directory"):
            lb.save(nn.Linear(2, 2), tmp_path / "run.ckpt.model")
    with monkeypatch.context() as patch, pytest.raises(ArtifactError, match=os.strerror(code)):
        train(path, checkpoint_every=1, callbacks=[Call(lambda: failing(patch, code, ".tmp"), 3)])
    assert checkpoint.read(path)["position"]["step"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.ckpt", "run.ckpt.previous"]


def test_a_log_that_cannot_be_written_does_not_stop_training(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recovers = [Call(lambda: failing(patch, errno.ENOSPC, "log.jsonl"), 3), Call(patch.undo, 7)]
        _, history = train(log=path, epochs=5, callbacks=recovers)
    told = [str(w.message) for w in caught if issubclass(w.category, LeanBayesWarning)]
    assert len(told) == 1
    assert "No space left" in told[0]
    assert [json.loads(line) for line in path.read_text().splitlines()] == history.rows  # the disk has room again
    failing(monkeypatch, errno.EROFS, "log.jsonl")
    with pytest.warns(LeanBayesWarning, match="Read-only"):
        _, history = train(log=path, epochs=3)
    assert len(history) == 3


@pytest.mark.parametrize("where", ["step", "write", "rename"])
def test_an_interrupt_leaves_the_last_checkpoint(tmp_path, monkeypatch, where):
    path = tmp_path / "run.ckpt"
    straight, _ = train(tmp_path / "other", checkpoint_every=1, callbacks=[Call(int)])

    def pressed():
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

    interrupt = Call(pressed, 3)
    if where != "step":
        name = "fsync" if where == "write" else "replace"
        real = getattr(os, name)

        def raising(*args):
            monkeypatch.setattr(os, name, real)
            raise KeyboardInterrupt

        interrupt = Call(lambda: monkeypatch.setattr(os, name, raising), 3)
    with pytest.raises(KeyboardInterrupt):
        train(path, checkpoint_every=1, callbacks=[interrupt])
    assert checkpoint.read(path)["position"]["step"] == 2
    assert sorted(p.name for p in tmp_path.iterdir() if "run" in p.name) == ["run.ckpt", "run.ckpt.previous"]
    continued, _ = train(path, checkpoint_every=1, resume=True, callbacks=[Call(int)])
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), continued.parameters(), strict=True))


def test_the_previous_file_is_kept_without_links_too(tmp_path, monkeypatch):
    def none(*args):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    path = tmp_path / "a"
    for text in (b"1", b"2", b"3"):
        files.write_bytes(path, text, keep_previous=True)
    assert (path.read_bytes(), files.previous(path).read_bytes()) == (b"3", b"2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.previous"]
