"""A checkpoint is continued by the run that wrote it; whatever differs is refused, or said."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, TensorDataset

import leanbayes as lb
from leanbayes import container
from leanbayes.errors import ArtifactError, LeanBayesWarning, TrainingError
from leanbayes.training import checkpoint, plain, rng
from leanbayes.training.natural_gradient import NaturalGradientSGD

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def make(std=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    lb.bayesianize_(model, lb.MeanField(prior=lb.Normal(std=std)))
    return model


def train(path, model=None, data=(X, Y), epochs=2, **options):
    model = model or make()
    settings = {"batch_size": 4, "lr": 0.01, "progress": False, "resume": True, "checkpoint": path, **options}
    return model, lb.fit(model, data, epochs=epochs, **settings)


def cosine(steps):
    return lambda o: CosineAnnealingLR(o, steps)


@pytest.mark.parametrize(
    ("first", "then", "match"),
    [
        ({"kl_weight": 1.0}, {"kl_weight": 0.5}, r"kl_weight\.value=1\.0, this run has kl_weight\.value=0\.5"),
        ({"kl_weight": lb.warmup(0, 1, 10)}, {"kl_weight": lb.warmup(0, 1, 20)}, r"kl_weight\.steps=10"),
        ({"kl_weight": lambda t: 1.0}, {"kl_weight": lambda t: 1 + t / 10}, r"kl_weight\.1=1\.0, .*=1\.1"),
        ({}, {"num_data": 30}, r"elbo\.num_data=20, this run has elbo\.num_data=30"),
        ({}, {"model": 2.0}, r"methods\.0\.prior\.std=1\.0, this run has methods\.0\.prior\.std=2\.0"),
        ({"scheduler": cosine(5)}, {"scheduler": cosine(9)}, r"scheduler\.T_max=5, .*=9"),
        ({"scheduler": cosine(5)}, {"scheduler": lambda o: StepLR(o, 5)}, r"scheduler\.class='CosineAnnealingLR'"),
        ({"scheduler": cosine(5)}, {"scheduler": cosine(5), "scheduler_every": "step"}, r"scheduler\.every='epoch'"),
        ({}, {"batch_size": 5}, "batch_size=4, this run has batch_size=5"),
        ({}, {"accumulate": 2}, "accumulate=1, this run has accumulate=2"),
        ({}, {"seed": 3}, "seed=0, this run has seed=3"),
        ({}, {"data": (X[:16], Y[:16])}, "num_data=20, this run has num_data=16"),
    ],
)
def test_another_run_is_refused_with_both_values(tmp_path, first, then, match):
    path = tmp_path / "run.ckpt"
    train(path, **first)
    written, model = path.read_bytes(), make(then.pop("model", 1.0))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingError, match=match):
        train(path, model, epochs=3, **then)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert path.read_bytes() == written
    assert not (tmp_path / "run.ckpt.lock").exists()


def test_a_new_learning_rate_is_applied_and_said(tmp_path):
    train(tmp_path / "a", optimizer=torch.optim.SGD)
    with pytest.warns(LeanBayesWarning, match=r"written with lr=0\.01, goes on with lr=0\.1$"):
        _, history = train(tmp_path / "a", epochs=3, lr=0.1, optimizer=torch.optim.SGD)
    assert history["lr"] == [0.01, 0.01, 0.1]
    train(tmp_path / "b", scheduler=cosine(9))
    with pytest.warns(LeanBayesWarning, match=r"lr=0\.1, which is not applied: the scheduler goes on with lr=0\.00"):
        _, history = train(tmp_path / "b", epochs=3, lr=0.1, scheduler=cosine(9))
    assert history["lr"][2] < 0.01


def test_a_learning_rate_that_a_callback_has_set_stays(tmp_path):
    class Halve(lb.Callback):
        def epoch_end(self, state):
            state.optimizer.param_groups[0]["lr"] /= 2

    train(tmp_path / "a", callbacks=[Halve()])
    _, history = train(tmp_path / "a", epochs=3, callbacks=[Halve()])
    assert history["lr"] == [0.01, 0.005, 0.0025]


def test_other_data_and_another_clip_are_said(tmp_path):
    train(tmp_path / "a")
    with pytest.warns(LeanBayesWarning, match=r"the data are not those.*; written with clip=None, .* clip=2\.0"):
        train(tmp_path / "a", data=(X + (torch.arange(20) == 7)[:, None], Y), epochs=3, clip=2.0)


class Random(Dataset):
    """Data that are random at every look, from the generators that fit seeds."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return X[index] + random.random() + np.random.rand() + torch.rand(3), int(Y[index])


def test_random_augmentation_is_not_taken_for_other_data(tmp_path):
    train(tmp_path / "a", data=Random())
    train(tmp_path / "a", data=Random(), epochs=3)  # a warning would fail this


class Own(Sampler):
    """A sampler with generators of its own; `epochs` is nobody's business but its own."""

    def __init__(self, kind):
        self.chance = {
            "torch": lambda: torch.Generator().manual_seed(1),
            "numpy": lambda: np.random.default_rng(1),
            "mt19937": lambda: np.random.Generator(np.random.MT19937(1)),
            "legacy": lambda: np.random.RandomState(1),
            "python": lambda: random.Random(1),
        }[kind]()

    def __iter__(self):
        if isinstance(self.chance, torch.Generator):
            return iter(torch.randint(20, (20,), generator=self.chance).tolist())
        choice = self.chance.randrange if isinstance(self.chance, random.Random) else None
        return iter([choice(20) for _ in range(20)] if choice else self.chance.permutation(20).tolist())

    def __len__(self):
        return 20


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["torch", "numpy", "mt19937", "legacy", "python"])
def test_the_generators_of_a_sampler_are_continued(tmp_path, kind, nested):
    def loader():
        if nested:
            return DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(Own(kind), 4, drop_last=False))
        return DataLoader(TensorDataset(X, Y), 4, sampler=Own(kind))

    def run(name, epochs):
        with pytest.warns(LeanBayesWarning, match=r"1 random generator\(s\) of it are saved"):
            return train(tmp_path / name, data=loader(), epochs=epochs)

    straight, whole = run("a", 4)
    run("b", 2)
    continued, parts = run("b", 4)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), continued.parameters(), strict=True))
    assert whole["loss"] == parts["loss"]


def forgeries():
    """Changes of a good checkpoint that keep its digest right."""

    def change(*keys, to):
        def apply(content):
            for key in keys[:-1]:
                content = content[key]
            content[keys[-1]] = to(content[keys[-1]]) if callable(to) else to

        return apply

    return {
        "position": change("position", "step", to=-1),
        "no position": change("position", to=3),
        "text": change("position", "epoch", to="2"),
        "sums": change("sums", "loss", to="much"),
        "history": change("history", to=[1, 2]),
        "weights": change("model", "0.posteriors.bias.loc", to=lambda t: t.double()),
        "weights of no number": change("model", "0.posteriors.bias.loc", to=lambda t: t * torch.nan),
        "no tensor": change("model", "0.posteriors.bias.loc", to="x"),
        "generator": change("rng", 0, "cpu", to=lambda t: t[:10]),
        "generators": change("rng", to=[]),
        "python's generator": change("rng", 0, "python", to=lambda t: t[:5]),
        "moments": change("optimizer", "state", 0, "exp_avg", to=torch.zeros(1)),
        "moments of nobody": change("optimizer", "state", 99, to={"exp_avg": torch.zeros(1)}),
        "groups": change("optimizer", "param_groups", 0, "params", to=lambda p: p[::-1]),
        "no group": change("optimizer", "param_groups", to=[]),
        "scheduler": change("scheduler", "step", to="x"),
        "step of the ELBO": change("elbo", "_extra_state", to="x"),
        "callbacks": change("callbacks", to=[("EarlyStopping", {"best": 1.0})]),
        "settings": change("settings", to=[]),
    }


@pytest.mark.parametrize("kind", forgeries())
def test_forged_content_is_refused_before_the_model_changes(tmp_path, kind):
    path, options = tmp_path / "run.ckpt", {"scheduler": cosine(9), "val": (X, Y), "early_stopping": 5}
    train(path, **options)
    content = checkpoint.read(path)
    forgeries()[kind](content)
    checkpoint.write(path, content)
    model = make()
    with torch.no_grad():
        model[1].weight.add_(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(ArtifactError, match=r"run\.ckpt"):
        train(path, model, epochs=3, optimizer=optimizer, **options)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not optimizer.state
    assert torch.equal(torch.get_rng_state(), state)


def test_the_checkpoint_before_is_kept(tmp_path):
    path = tmp_path / "run.ckpt"
    train(path, epochs=3)
    kept = tmp_path / "run.ckpt.previous"
    assert [checkpoint.read(p)["position"]["epoch"] for p in (path, kept)] == [3, 2]
    straight, _ = train(tmp_path / "other", epochs=4)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match=r"damaged.*run\.ckpt\.previous' holds the one before it: rename it"):
        train(path, epochs=4)
    kept.rename(path)
    continued, _ = train(path, epochs=4)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), continued.parameters(), strict=True))


def test_an_old_checkpoint_is_written_anew(tmp_path):
    from .test_checkpoint import old

    path = tmp_path / "run.ckpt"
    train(path)
    content = checkpoint.read(path)
    new = {"elbo.num_data", "kl_weight", "methods", "scheduler"}
    content["settings"] = {k: v for k, v in content["settings"].items() if k not in new}
    path.write_bytes(old({k: v for k, v in content.items() if k not in ("free", "feed")}))
    assert checkpoint.is_old(path)
    train(path)  # nothing left to do
    assert not checkpoint.is_old(path)
    assert checkpoint.read(path)["settings"].keys() >= new
    straight, _ = train(tmp_path / "other", epochs=4)
    continued, _ = train(path, epochs=4)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), continued.parameters(), strict=True))


def test_no_pickle_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", None)
    monkeypatch.setattr(torch, "load", None)
    train(tmp_path / "a", optimizer=NaturalGradientSGD, scheduler=lambda o: LambdaLR(o, lambda t: 0.5**t))
    train(tmp_path / "a", epochs=3, optimizer=NaturalGradientSGD, scheduler=lambda o: LambdaLR(o, lambda t: 0.5**t))
    assert container.read_header(tmp_path / "a")[0]["checkpoint"]


def test_values_come_back_as_they_were():
    tied = torch.randn(3, 4)
    content = {
        "a": [1, 1.5, True, None, "x", -0.0, float("inf"), 2**100],
        3: (torch.Size([2, 3]), {"s"}, {"tied": tied, "again": tied, "row": tied[1]}),
        "transposed": torch.randn(4, 3).T, "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3), "bool": torch.tensor([True]), "half": torch.ones(2).bfloat16(),
        "empty": torch.zeros(0, 3), "strided": torch.arange(10.0)[::3], "expanded": torch.ones(1).expand(3),
        "keys": np.arange(3, dtype=np.uint64) + 2**63,
    }  # fmt: skip
    found = plain.decode(*plain.encode(content))
    assert found["a"] == content["a"]
    assert [type(v) for v in found["a"]] == [type(v) for v in content["a"]]
    assert str(found["a"][5]) == "-0.0"
    assert found[3][:2] == ((2, 3), {"s"})
    assert all(torch.equal(found[3][2][k], v) for k, v in content[3][2].items())
    for name in ("transposed", "last", "scalar", "bool", "half", "empty", "strided", "expanded"):
        assert torch.equal(found[name], content[name])
        assert found[name].dtype == content[name].dtype
    for name in ("transposed", "last"):  # products of matrices depend on it in the last bit
        assert found[name].stride() == content[name].stride()
    assert found["keys"].dtype == np.uint64
    assert found["keys"].tolist() == content["keys"].tolist()
    for odd in (object(), {"f": print}, torch.eye(2).to_sparse(), torch.ones(1, dtype=torch.complex64), b"x"):
        with pytest.raises(TypeError, match="expected"):
            plain.encode({"odd": odd})


def test_generators_are_put_back():
    for generator in (torch.Generator(), np.random.default_rng(0), np.random.RandomState(0), random.Random(0)):
        state = plain.decode(*plain.encode(rng.state_of(generator)))
        draw = {torch.Generator: lambda g: torch.rand(1, generator=g).item()}.get(type(generator), lambda g: g.random())
        first = draw(generator)
        rng.set_state(generator, state)
        assert draw(generator) == first
