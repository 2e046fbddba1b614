import hashlib
import io
import os
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from leanbayes import container
from leanbayes.errors import ArtifactError, ConfigError, LeanBayesWarning, TrainingError
from leanbayes.training import checkpoint
from leanbayes.training.callbacks import Callback, EarlyStopping
from leanbayes.training.fit import fit

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def make(width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 2))


def train(path, model=None, epochs=3, **options):
    model = model or make()
    settings = {"batch_size": 4, "lr": 0.01, "progress": False, "resume": True, "checkpoint": path, **options}
    return model, fit(model, (X, Y), epochs=epochs, **settings)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class StopAt(Callback):
    """Raises at a step, as an interrupt would."""

    def __init__(self, step=None):
        self.step, self.seen = step, 0

    def after_step(self, state):
        self.seen += 1
        if state.step == self.step:
            raise KeyboardInterrupt

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("step", [1, 5, 7, 14])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scheduler": lambda o: CosineAnnealingLR(o, 15), "scheduler_every": "step"},
        {"scheduler": lambda o: ReduceLROnPlateau(o, patience=0), "optimizer": torch.optim.SGD},
        {"scheduler": lambda o: MultiStepLR(o, [1, 2])},
        {"scheduler": lambda o: LambdaLR(o, lambda t: 0.5**t), "val": (X, Y)},
        {"val": (X, Y), "early_stopping": EarlyStopping(patience=3, restore_best=True)},
    ],
)
def test_interrupted_and_continued_is_undisturbed(tmp_path, step, options):
    straight, whole = train(tmp_path / "a", callbacks=[StopAt()], checkpoint_every=1, **options)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", callbacks=[StopAt(step)], checkpoint_every=1, **options)
    last = StopAt()
    continued, parts = train(tmp_path / "b", callbacks=[last], checkpoint_every=1, **options)
    assert same(straight, continued)
    assert last.seen == 15  # what it counted before the interrupt came back, bar the step that was not saved
    for a, b in zip(whole, parts, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_a_finished_run_is_not_run_again_and_can_go_on(tmp_path):
    straight, whole = train(tmp_path / "a", epochs=4)
    train(tmp_path / "b", epochs=2)
    spy = []

    class Spy(Callback):
        def before_step(self, state):
            spy.append(state.step)

    train(tmp_path / "c", epochs=2, callbacks=[Spy()])
    done = len(spy)
    train(tmp_path / "c", epochs=2, callbacks=[Spy()])
    assert len(spy) == done == 10
    longer, rows = train(tmp_path / "b", epochs=4)
    assert same(straight, longer)
    assert len(rows) == len(whole) == 4


def test_an_old_checkpoint_is_neither_overwritten_nor_taken_for_this_run(tmp_path):
    path = tmp_path / "run.ckpt"
    train(path)
    before = path.read_bytes()
    for options, error, message in [
        ({"resume": False}, TrainingError, "resume=True"),
        ({"seed": 1}, ArtifactError, "seed=0, this run has seed=1"),
        ({"batch_size": 5}, ArtifactError, "batch_size=4"),
        ({"optimizer": torch.optim.SGD}, ArtifactError, "optimizer='Adam'"),
        ({"model": make(5)}, ArtifactError, r"expected shape \(5, 3\), received shape \(4, 3\)"),
        ({"model": nn.Sequential(nn.Linear(3, 2))}, ArtifactError, "was the model changed"),
        ({"callbacks": [StopAt()]}, ArtifactError, "callbacks"),
        ({"scheduler": lambda o: CosineAnnealingLR(o, 5)}, ArtifactError, "scheduler"),
    ]:
        model = options.pop("model", None) or make()
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        with pytest.raises(error, match=message):
            train(path, model, **options)
        assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert path.read_bytes() == before


RAN = []


def run_me():
    RAN.append("code from a file")


class Evil:
    def __reduce__(self):
        return run_me, ()


def old(content):
    """The bytes that version 0.1 wrote."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    digest = hashlib.blake2b(buffer.getvalue(), digest_size=32).digest()
    return b"leanbayes checkpoint 1\n" + digest + buffer.getvalue()


def damaged():
    good = checkpoint.dumps({"step": 1, "weight": torch.arange(1000.0)})
    older = old({"step": 1, "weight": torch.arange(1000.0)})
    middle = len(good) // 2
    return {
        "empty": b"",
        "foreign": b"PK\x03\x04 something else",
        "truncated": good[:-100],
        "cut header": good[:10],
        "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        "grown": good + b"\0",
        "future": good.replace(b'\\"version\\": 1', b'\\"version\\": 9', 1),
        "pickle": pickle.dumps({"step": 1}),
        "model": container.pack({}, {"conversions": {}}),
        "list": checkpoint.dumps([1, 2]),
        "incomplete": checkpoint.dumps({"settings": {}}),
        "no such tensor": container.pack({}, {"checkpoint": {"dict": [["model", {"tensor": "w"}]]}}),
        "no such kind": container.pack({}, {"checkpoint": {"function": ["os.system"]}}),
        "old truncated": older[:-100],
        "old flipped": older[:500] + bytes([older[500] ^ 1]) + older[501:],
        "old code": old({"step": Evil()}),
    }


@pytest.mark.parametrize("kind", damaged())
def test_damaged_and_foreign_files_are_refused(tmp_path, kind):
    path, model = tmp_path / "run.ckpt", make()
    path.write_bytes(damaged()[kind])
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ArtifactError, match=r"run\.ckpt"):
        train(path, model)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert path.read_bytes() == damaged()[kind]
    assert not RAN


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    checkpoint.write(path, {"step": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, full)
            with pytest.raises(ArtifactError, match="No space"):
                checkpoint.write(path, {"step": 2})
        assert checkpoint.read(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"]


def test_what_cannot_be_read_back_is_refused_at_the_start(tmp_path):
    class Odd(Callback):
        def before_step(self, state):
            raise AssertionError("training has begun")

        def state_dict(self):
            return {"me": self}

        def load_state_dict(self, state):
            pass

    with pytest.raises(TrainingError, match="state of the callbacks"):
        train(tmp_path / "run.ckpt", callbacks=[Odd()])
    assert not list(tmp_path.iterdir())


def test_other_loaders_continue_at_the_epoch(tmp_path):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, sampler=SubsetRandomSampler(range(12)))

    def run(path, stop):
        model = make()
        with pytest.warns(LeanBayesWarning, match="end of epochs only"):
            fit(model, loader, epochs=3, checkpoint=path, checkpoint_every=1, resume=True, callbacks=[stop], lr=0.01)
        return model

    straight = run(tmp_path / "a", StopAt())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", StopAt(5))
    assert checkpoint.read(tmp_path / "b")["position"] == {"epoch": 1, "batch": 0, "step": 3, "stop": None}
    assert same(straight, run(tmp_path / "b", StopAt()))


def test_paths_are_checked(tmp_path):
    for path, options in (
        (tmp_path, {}),
        (tmp_path / "no" / "run.ckpt", {}),
        (3, {}),
        (None, {"resume": True}),
        (None, {"resume": False, "checkpoint_every": 5}),
        (tmp_path / "run.ckpt", {"checkpoint_every": 0}),
    ):
        with pytest.raises(ConfigError):
            train(path, **options)
    assert not list(tmp_path.iterdir())
