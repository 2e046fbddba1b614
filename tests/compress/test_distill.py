"""`distill`: that a student learns what its teacher says, spread included, and what is refused before training."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import leanbayes as lb
from leanbayes.batches import TaughtOutput, with_labels
from leanbayes.compress.distill import precision
from leanbayes.compress.taught import Objective
from leanbayes.compress.teacher import Teacher
from leanbayes.convert import record
from leanbayes.errors import ArtifactError, ConfigError, DataError, PredictionError
from leanbayes.ordering.unit import units

QUIET = {"progress": False, "seed": 0}


class Doubtful(nn.Module):
    """A teacher whose samples are known: logits (x, 0, -x) plus noise of a scale that grows with the second input."""

    def forward(self, x):
        noise = torch.randn(3)
        return torch.stack([x[:, 0], torch.zeros(len(x)), -x[:, 0]], 1) + noise * (0.2 + 1.5 * x[:, 1:2])


def inputs(count=512):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 2, generator=generator)
    x[:, 0] = 4 * x[:, 0] - 2
    return x


def small(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, outputs))


def nested(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    lb.bayesianize_(model, lb.Nested(groups=8, base_groups=1, **options))
    return model


@pytest.mark.parametrize(("loss", "outputs"), [("mmd", 3), ("mmd", 4), ("kl", 4), ("kd", 3)])
def test_a_student_says_what_its_teacher_says(loss, outputs):
    x, teacher = inputs(256), Doubtful()
    student = small(outputs)
    returned = lb.distill(
        teacher, x, student, loss=loss, samples=16, cache=True, task="classification", epochs=60, lr=0.01, **QUIET
    )
    assert returned is student
    assert not student._forward_hooks
    expected, found = lb.predict(teacher, x, 16, task="classification"), lb.predict(student, x)  # the same draws
    assert found.engine == "deterministic"
    assert (found.probs - expected.probs).abs().mean() < 0.03
    if loss == "kd":
        assert (found.mutual_information < 1e-6).all()
        return
    pair = torch.stack([found.mutual_information, expected.mutual_information])
    assert torch.corrcoef(pair)[0, 1] > 0.8
    ratio = (pair[0].mean() / pair[1].mean()).item()
    assert 0.6 < ratio < 1.4  # logistic-normal samples are not Dirichlet's: the size is met, not every digit


def test_answers_are_drawn_anew_for_every_batch_and_for_the_same_inputs():
    seen = []

    class Watched(Doubtful):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    student, x = small(), inputs(8)
    teacher = Teacher(Watched(), lb.Classification(), 4)
    hook = student.register_forward_hook(teacher.teach, with_kwargs=True)
    torch.manual_seed(0)
    first, second = student(x), student(x)
    assert isinstance(first, TaughtOutput)
    assert first.targets.shape == (8, 4, 3)
    assert torch.equal(first.outputs, second.outputs)
    assert not torch.equal(first.targets, second.targets)
    assert all(torch.equal(part, x) for part in seen)
    torch.manual_seed(0)
    assert torch.equal(student(x).targets, first.targets)
    student.eval()
    assert isinstance(student(x), torch.Tensor)
    hook.remove()


def test_a_student_is_cut_from_a_nested_teacher_at_its_means():
    teacher = nested()
    before = copy.deepcopy(teacher.state_dict())
    student = lb.distill(teacher, inputs(), task="classification", epochs=1, lr=1e-9, samples=4, **QUIET)
    assert student[0].weight.shape == (8, 2)
    assert torch.allclose(student[0].weight, lb.extract(teacher, width=0.25)[0].weight, atol=1e-6)
    after = teacher.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items() if isinstance(value, torch.Tensor))
    assert not lb.sampling.sites(student)


def test_widths_of_a_nested_student_are_the_teachers():
    teacher, student = nested(), nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    lb.bayesianize_(student, lb.NestedDropout(groups=4, base_groups=1))
    lb.set_width_(teacher, 1.0)
    x, asked, seen = inputs(32), Teacher(teacher, lb.Classification(), 2), []
    asked.follow(student)
    (own,) = units(teacher)
    teacher[3].register_forward_pre_hook(lambda *_: seen.append(own.fraction(own.width)))
    student.register_forward_hook(asked.teach, with_kwargs=True)
    statistics = copy.deepcopy(teacher[1].state_dict())
    torch.manual_seed(0)
    (unit,) = units(student)
    drawn = []
    for _ in range(20):
        student(x)
        drawn.append(unit.fraction(unit.drawn(unit.draw.current)))
    assert set(drawn) == {0.25, 0.5, 0.75, 1.0}
    assert [width for width in drawn for _ in range(2)] == seen[-40:]
    assert own.width == own.limit
    assert all(torch.equal(value, statistics[name]) for name, value in teacher[1].state_dict().items())


def test_training_ends_the_same_after_an_interruption(tmp_path):
    x, y = inputs(256), torch.zeros(256, dtype=torch.long)
    options = {"loss": "mmd", "samples": 4, "task": "classification", **QUIET}

    class Stop(lb.Callback):
        at = 1

        def epoch_end(self, state):
            if state.epoch == self.at:
                raise KeyboardInterrupt

    whole = lb.distill(Doubtful(), (x, y), small(), epochs=3, **options)
    path = tmp_path / "run.ckpt"
    with pytest.raises(KeyboardInterrupt):
        lb.distill(Doubtful(), (x, y), small(), epochs=3, checkpoint=path, callbacks=[Stop()], **options)
    Stop.at, interrupted = None, small()
    lb.distill(Doubtful(), (x, y), interrupted, epochs=3, checkpoint=path, resume=True, callbacks=[Stop()], **options)
    assert torch.equal(whole[0].weight, interrupted[0].weight)
    with pytest.raises(ArtifactError, match="written with another loss"):
        lb.distill(
            Doubtful(), (x, y), small(), checkpoint=path, resume=True, callbacks=[Stop()], **{**options, "loss": "kl"}
        )


def test_validation_is_on_labels_and_records_what_outputs_mean(tmp_path):
    x = inputs()
    labels = Doubtful()(x).argmax(1)
    log, student, teacher = tmp_path / "log.jsonl", small(), nested()
    record.ensure(teacher).trained(lb.Classification().to_dict(), ("a", "b", "c"))
    loader = DataLoader(TensorDataset(x), 64)
    lb.distill(teacher, loader, student, epochs=2, samples=2, val=(x, labels), log=log, **QUIET)
    assert "val_accuracy" in log.read_text()
    said = lb.predict(student, x)
    assert said.classes == ("a", "b", "c")
    lb.save(student, tmp_path / "s.safetensors")
    again = lb.load(tmp_path / "s.safetensors", into=small())
    assert torch.equal(lb.predict(again, x).mutual_information, said.mutual_information)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_by_its_moments(outputs):
    class Line(nn.Module):
        def forward(self, x):
            return 3 * x[:, :1] + x[:, 1:2] * torch.randn(())  # variance x_1^2 beside the noise

    student, x = small(outputs), inputs()
    lb.distill(
        Line(), x, student, loss="kl", samples=64, cache=True, task=lb.Regression(std=0.1), epochs=60, lr=0.02, **QUIET
    )
    found = lb.predict(student, x)
    assert (found.mean - 3 * x[:, :1]).abs().mean() < 0.25
    expected = (x[:, 1:2].square() + 0.01).sqrt()
    if outputs == 2:
        assert (found.variance.sqrt() - expected).abs().mean() < 0.12
    else:
        assert math.isclose(found.variance.mean().item(), expected.square().mean().item(), rel_tol=0.35)


def test_last_layer():
    student = small()
    lb.distill(Doubtful(), inputs(), student, task="classification", epochs=1, last_layer=lb.MeanField(), **QUIET)
    assert list(record.conversions(student)) == ["2"]
    assert lb.predict(student, inputs(8), 5).counts.tolist() == [5] * 8


def test_answers_of_the_caller_serve_several_students():
    x, teacher = inputs(64), Doubtful()
    said = lb.predict(teacher, x, 4, task="classification", keep_samples=True)
    options = {"samples": 4, "task": "classification", "epochs": 1, **QUIET}
    first, second = (lb.distill(teacher, x, small(), cache=cache, **options) for cache in (said, True))
    assert torch.equal(first[0].weight, second[0].weight)
    with pytest.raises(ConfigError, match="of the 60 data of the loader, received a prediction of 64"):
        lb.distill(teacher, x[:60], small(), cache=said, **options)


def test_the_mean_beside_the_mmd():
    torch.manual_seed(0)
    outputs, samples = torch.randn(5, 3), torch.rand(5, 4, 3).softmax(-1)
    student = lb.Dirichlet("logits")
    found = []
    for weight in (0.0, 1.0, 2.5):
        torch.manual_seed(1)  # the same draws from the student
        found.append(Objective("mmd", mean_weight=weight)(student, outputs, samples))
    entropy = nn.functional.cross_entropy(outputs, samples.mean(1), reduction="none")
    torch.testing.assert_close(found[1] - found[0], entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2] - found[0], 2.5 * entropy, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="mean_weight: expected"):
        lb.distill(nn.Linear(2, 2), torch.randn(4, 2), mean_weight=-1)


@pytest.mark.parametrize("loss", ["mmd", "kl", "kd"])
def test_labels_beside_the_teacher(loss):
    torch.manual_seed(0)
    outputs, samples, labels = torch.randn(5, 3), torch.rand(5, 4, 3).softmax(-1), torch.tensor([0, 1, 2, 2, 0])
    student = lb.Classification() if loss == "kd" else lb.Dirichlet("logits")
    found = []
    for weight in (0.0, 2.5):
        torch.manual_seed(1)
        targets = with_labels(samples, labels) if weight else samples
        found.append(Objective(loss, mean_weight=1.0, temperature=2.0, label_weight=weight)(student, outputs, targets))
    expected = 2.5 * nn.functional.cross_entropy(outputs, labels, reduction="none")
    torch.testing.assert_close(found[1] - found[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["tensors", "dataset", "loader"])
def test_a_student_that_learns_from_labels_too(form):
    x = inputs(128)
    labels = (x[:, 0] < 0).long()  # class 0 to the right, where the teacher says so too, and never class 2
    data = {"tensors": (x, labels), "dataset": Pairs(x, labels), "loader": DataLoader(TensorDataset(x, labels), 32)}
    options = {"samples": 4, "task": "classification", "epochs": 12, "lr": 0.02, "cache": form != "loader", **QUIET}
    without = lb.distill(Doubtful(), data[form], small(), **options)
    student = lb.distill(Doubtful(), data[form], small(), label_weight=20.0, **options)
    scores = [lb.predict(one, x).log_prob(labels).mean() for one in (student, without)]
    assert scores[0] > scores[1] + 0.1
    assert lb.predict(student, x).mutual_information.mean() > 1e-4


class Pairs(Dataset):
    """Inputs and labels, as a data set of one's own has them: labels are plain numbers."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


def test_precision_of_samples():
    torch.manual_seed(0)
    drawn = torch.distributions.Dirichlet(torch.tensor([[6.0, 3.0, 1.0], [60.0, 30.0, 10.0]])).sample((20_000,))
    assert torch.allclose(precision(drawn.movedim(0, 1)), torch.tensor([10.0, 100.0]), rtol=0.05)


REFUSED = {
    "wrong loss": ({"loss": "mse"}, ConfigError, "loss: expected one of 'mmd', 'kl', 'kd', received 'mse'"),
    "wrong classes": (
        {"student": small(5)},
        ConfigError,
        r"student: expected 3 outputs, .*or 4 .*received .*\(\d+, 5\)",
    ),
    "one class": ({"student": small(2), "loss": "kd"}, ConfigError, "student: expected 3 outputs"),
    "no randomness": ({"teacher": small()}, ConfigError, "teacher: expected one that draws networks.*bayesianize_"),
    "nothing to cut": ({"student": None}, ConfigError, "student: expected a network.*lb.Nested"),
    "empty": ({"loader": torch.zeros(0, 2)}, DataError, "loader: expected at least one datum"),
    "no data": ({"loader": 3}, DataError, "loader: expected a DataLoader"),
    "no model": ({"student": 3}, ConfigError, "student: expected an nn.Module"),
    "no task": ({"task": None}, PredictionError, "its task is not known"),
    "regression": ({"task": "regression"}, ConfigError, "loss: expected 'kl' for a regression"),
    "one sample": ({"samples": 1}, ConfigError, "samples: expected a whole number of at least 2"),
    "cached loader": ({"cache": True, "loader": DataLoader(inputs(8))}, ConfigError, "cache: expected tensors"),
    "last layer": ({"last_layer": "mean-field"}, ConfigError, "last_layer: expected a method"),
    "no labels": ({"label_weight": 1.0}, DataError, "label_weight: expected a label from 0 to 2 for each of 16 data"),
    "wrong labels": (
        {"label_weight": 1.0, "loader": (inputs(4), torch.tensor([0, 1, 2, 3]))},
        DataError,
        "label_weight: expected a label from 0 to 2",
    ),
    "labels of a regression": (
        {"label_weight": 1.0, "loss": "kl", "task": "regression"},
        ConfigError,
        "label_weight: expected 0 for a regression",
    ),
    "an option": ({"epochs": 0}, ConfigError, "epochs: expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_the_student_as_it_was(case):
    changes, error, message = REFUSED[case]
    given = {"teacher": Doubtful(), "loader": inputs(16), "student": small(), "task": "classification", **changes}
    student = given["student"]
    before = copy.deepcopy(student.state_dict()) if isinstance(student, nn.Module) else {}
    with pytest.raises(error, match=message):
        lb.distill(given.pop("teacher"), given.pop("loader"), given.pop("student"), **given, **QUIET)
    if isinstance(student, nn.Module):
        assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
        assert not student._forward_hooks


def test_a_teacher_does_not_teach_itself():
    teacher = nested()
    with pytest.raises(ConfigError, match="shares weights with the teacher"):
        lb.distill(teacher, inputs(16), teacher, task="classification", **QUIET)


def test_a_last_layer_is_plain_again_after_a_failure():
    student = small()
    with pytest.raises(ConfigError, match="epochs"):
        lb.distill(Doubtful(), inputs(16), student, task="classification", epochs=0, last_layer=lb.MeanField(), **QUIET)
    assert type(student[2]) is nn.Linear
