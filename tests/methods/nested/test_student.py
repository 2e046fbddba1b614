"""Students that stay nested: which channels they keep, and that they can be taught and written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError
from leanbayes.ordering.unit import units


def inputs(count):
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(0))


def test_a_nested_student_keeps_order_and_tails():
    """Of a teacher whose channels are ordered by importance, not by number: at every width, the same channels."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    lb.fit(teacher, (inputs(64), torch.arange(64) % 3), epochs=60, lr=0.05, progress=False)
    lb.bayesianize_(teacher, lb.Nested(groups=8, base_groups=1))
    (unit,) = units(teacher)
    assert unit.steps.of != tuple(sorted(unit.steps.of))
    x = inputs(16)
    student = lb.nested_student(teacher, 0.5, x)
    assert student[0].weight.shape == (16, 2)
    tails = unit.tails().detach().exp()
    assert torch.allclose(units(student)[0].tails().exp(), tails[:4] / tails[:4].sum())
    for width in (0.25, 0.5, 0.75, 1.0):
        lb.set_width_(student, width)
        lb.set_width_(teacher, width / 2)
        with lb.using(mean_only=True), torch.no_grad():
            assert torch.allclose(student.eval()(x), teacher.eval()(x), atol=1e-6)


def test_a_nested_student_is_taught_saved_and_run_at_any_width(tmp_path):
    torch.manual_seed(0)
    x, teacher = inputs(64), nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    lb.bayesianize_(teacher, lb.Nested(groups=8, base_groups=1))
    student = lb.nested_student(teacher, 0.5)
    lb.distill(teacher, x, student, samples=2, task="classification", epochs=2, progress=False)
    assert lb.widths(student) == [0.25, 0.5, 0.75, 1.0]
    assert lb.predict(student, x).counts.max() == 1
    lb.save(student, tmp_path / "s.safetensors")
    again = lb.load(tmp_path / "s.safetensors", into=lb.extract(teacher, 0.5))
    lb.set_width_(again, 0.5)
    lb.set_width_(student, 0.5)
    assert torch.equal(lb.predict(again, x).mutual_information, lb.predict(student, x).mutual_information)


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(ConfigError, match="no ordered channels to cut it from"):
        lb.nested_student(nn.Linear(2, 2))
    teacher = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    lb.bayesianize_(teacher, lb.Nested(groups=8, base_groups=1))
    with pytest.raises(ConfigError, match="width: expected one at which some channels can be dropped"):
        lb.nested_student(teacher, 0.1)
