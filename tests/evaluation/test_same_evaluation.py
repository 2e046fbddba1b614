"""A file of `resume=` never answers for another model, other data or other code, however little differs."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.errors import ArtifactError
from leanbayes.evaluation.structure import structure
from leanbayes.fingerprint import Fingerprint
from leanbayes.likelihoods import Custom

FACTOR = 1.0


def helper(x: Tensor) -> Tensor:
    return x * FACTOR


class Own(nn.Module):
    """Options and code of somebody's own."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.power, self.activation = 1, torch.relu
        self.register_buffer("offset", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return helper(self.layer(x)) * self.scale + self.offset


def sequence(rate: float = 0.1, activation: Any = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Dropout(rate), nn.Linear(8, 3))


def own() -> Own:
    torch.manual_seed(0)
    return Own()


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(600, 4)
    likely, chance = sequence().eval()(x).argmax(1), torch.randint(3, (600,))
    return x, torch.where(torch.rand(600) < 0.5, likely, chance)


def ask(model: nn.Module, data: Any, file: Any, **options: Any) -> lb.Evaluation:
    given = {"task": "classification", "samples": 1, "replicates": 0, "progress": False, **options}
    return lb.evaluate(model, data, resume=file, **given)


def refused(match: str, model: nn.Module, data: Any, file: Any, **options: Any) -> None:
    before = file.read_bytes()
    with pytest.raises(ArtifactError, match=match):
        ask(model, data, file, **options)
    assert file.read_bytes() == before


def test_options_of_modules(data, tmp_path):
    file = tmp_path / "run.eval"
    first = ask(sequence(), data, file)
    assert ask(sequence(), data, file).metrics == first.metrics
    refused("module.*'2'", sequence(0.6), data, file)
    refused("module.*'1'", sequence(activation=nn.Tanh), data, file)
    hooked = sequence()
    hooked[0].register_forward_hook(lambda module, inputs, output: output * 2)
    refused("module.*'0'", hooked, data, file)
    replaced = sequence()
    replaced[1].forward = torch.tanh
    refused("module.*'1'", replaced, data, file)


def test_code_and_options_of_ones_own(data, tmp_path, monkeypatch):
    file = tmp_path / "run.eval"
    first = ask(own(), data, file)
    assert ask(own(), data, file).metrics == first.metrics
    for name, value in (("power", 2), ("activation", torch.tanh), ("offset", torch.ones(3)), ("scale", 2.0)):
        model = own()
        setattr(model, name, value)
        refused("module.*''", model, data, file)
    for change in (lambda self, x: self.layer(x) * 3, lambda self, x: helper(self.layer(x)) * self.scale):
        with monkeypatch.context() as patch:
            patch.setattr(Own, "forward", change)
            refused("module.*''", own(), data, file)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "FACTOR", 2.0)
        refused("module.*''", own(), data, file)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "helper", lambda x: x - FACTOR)
        refused("module.*''", own(), data, file)
    assert ask(own(), data, file).metrics == first.metrics


def test_likelihoods_of_ones_own(data, tmp_path):
    def likelihood(power: float) -> Custom:
        made = Custom(lambda f, y: f[:, 0], probs=lambda f: (f * power).softmax(-1))
        made.task = "classification"
        return made

    file = tmp_path / "run.eval"
    ask(sequence(), data, file, task=likelihood(1.0))
    ask(sequence(), data, file, task=likelihood(1.0))
    refused("likelihood differs", sequence(), data, file, task=likelihood(2.0))


@pytest.mark.parametrize("method", [lb.MeanField(), lb.Dropout(0.3), lb.Ensemble(members=2), lb.SparseSubspace()])
def test_converted_models(method, data, tmp_path):
    """The same after training elsewhere and loading; another option of the method is another model."""

    def converted(other: Any = method) -> nn.Module:
        model = sequence()
        lb.bayesianize_(model, {nn.Linear: other})
        return model

    model = converted()
    lb.fit(model, data, epochs=1, task="classification", progress=False)
    again = lb.load(lb.save(model, tmp_path / "a.safetensors"), into=sequence())
    assert structure(again) == structure(model)
    file = tmp_path / "run.eval"
    first = ask(model, data, file, task=None, samples=2)
    assert ask(again, data, file, task=None, samples=2).metrics == first.metrics


def test_data_behind_the_first_rows(data, tmp_path):
    file, (x, y) = tmp_path / "run.eval", data
    ood = {"other": torch.randn(300, 4)}
    held_out = x[:100] + 0.1, y[:100]
    options: dict[str, Any] = {"ood": ood, "temperature": held_out}
    first = ask(sequence(), data, file, **options)
    assert ask(sequence(), data, file, **options).metrics == first.metrics
    changed, label = x.clone(), y.clone()
    changed[599, 3] += 1e-6
    label[599] = (label[599] + 1) % 3
    strange = ood["other"].clone()
    strange[-1, -1] += 1
    warmer = held_out[0], held_out[1].roll(1)
    assert not torch.equal(warmer[1], held_out[1])
    refused("test data differ", sequence(), (changed, y), file, **options)
    refused("test data differ", sequence(), (x, label), file, **options)
    refused("test data differ", sequence(), [(x[:599], y[:599]), (x[599:], y[599:])], file, **options)
    refused("ood other differ", sequence(), data, file, **{**options, "ood": {"other": strange}})
    refused("temperature differ|temperature: .*differ", sequence(), data, file, **{**options, "temperature": warmer})


def test_data_that_change_from_pass_to_pass(data, tmp_path):
    shuffled = DataLoader(TensorDataset(*data), batch_size=600, shuffle=True)
    with pytest.raises(ArtifactError, match="take out shuffle=True"):
        ask(sequence(), shuffled, tmp_path / "run.eval", temperature=(data[0][:50], data[1][:50]))


def test_a_file_without_digests_is_no_answer(data, tmp_path):
    """As version 0.1 wrote them: the same evaluation as far as it tells, so its stages are computed again."""
    from leanbayes import container

    file, (x, y) = tmp_path / "run.eval", data
    changed = x.clone()
    changed[300:] = -x[300:]
    expected = ask(sequence(), (changed, y), None).metrics
    ask(sequence(), data, file)
    tensors, document = container.read(file)
    del document["evaluation"]["digests"]
    for part in ("structure", "likelihood"):
        del document["evaluation"]["identity"][part]
    file.write_bytes(container.pack(tensors, {**document, "digest": "0" * 64}))
    assert ask(sequence(), (changed, y), file).metrics == pytest.approx(expected, nan_ok=True)
    refused("test data differ", sequence(), data, file)


def test_a_fingerprint_sees_every_row_and_no_batches(data):
    x, y = data

    def told(size: int, rows: Tensor) -> str:
        made = Fingerprint()
        for at in range(0, 600, size):
            made.add(rows[at : at + size], y[at : at + size])
        return str(made)

    assert told(7, x) == told(600, x)
    changed = x.clone()
    changed[-1, -1] += 1
    assert told(7, x) != told(7, changed)
    assert ask(sequence(), data, None).settings["data"] == told(100, x)


PROGRAM = textwrap.dedent("""
    import torch, functools
    from torch import nn
    from leanbayes.evaluation.structure import structure
    class Net(nn.Module):
        names = frozenset({"a", "b", "c", "d"})
        def __init__(self):
            super().__init__()
            self.kinds, self.call = {"x", "y", "z"}, functools.partial(torch.add, alpha=2)
            self.register_forward_hook(lambda m, i, o: o if o in {"p", "q", "r"} else o)
        def forward(self, x):
            return x if x in {"k", "l", "m"} else self.call(x, x)
    print(structure(Net()))
""")


def test_digests_are_the_same_in_every_process():
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_objects_that_hold_themselves():
    model = nn.Linear(2, 2)
    model.forward = functools.partial(lambda m, x: x, model)
    loop: list[Any] = []
    loop.append(loop)
    holder = own()
    holder.loop, holder.deep = loop, holder.layer
    assert structure(model) == structure(model)
    assert structure(holder) == structure(holder)
