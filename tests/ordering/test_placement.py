"""Cutting channels into ordered groups, and choosing which."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert.channels import Constraint, Group, channel_graph
from leanbayes.errors import ConversionError
from leanbayes.models import mobilenet_v2, resnext_cifar
from leanbayes.ordering.placement import check_order, cut, place

FREE = {"groups": 4, "base": 1, "order": None}


@pytest.mark.parametrize("size", [2, 3, 5, 16, 31, 64, 100])
@pytest.mark.parametrize(("groups", "base"), [(2, 1), (4, 2), (32, 2), (32, 31)])
def test_groups_are_ordered_as_equal_as_possible_and_none_is_empty(size, groups, base):
    steps = cut(Group("a", size), groups, base)
    if steps is None:  # a base in proportion may take all of a few channels
        assert size < groups
        return
    assert list(steps.of) == sorted(steps.of)
    counts = [steps.of.count(g) for g in range(steps.groups)]
    assert steps.groups == min(groups, size)
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1
    assert 1 <= steps.base < steps.groups
    assert set(steps.node_of) == set(range(steps.nodes))


@pytest.mark.parametrize(
    "constraints",
    [
        (Constraint("equal", 4, "conv"),),
        (Constraint("whole", 8, "norm"),),
        (Constraint("equal", 4, "conv"), Constraint("whole", 8, "norm")),
        (Constraint("equal", 4, "conv"), Constraint("equal", 8, "other")),
    ],
)
def test_every_width_is_one_that_the_constraints_allow(constraints):
    group = Group("a", 48, constraints=constraints)
    steps = cut(group, 32, 2)
    assert steps is not None
    for nodes in range(1, steps.nodes + 1):
        group.check([c for c, node in enumerate(steps.node_of) if node < nodes])


def test_what_cannot_lose_anything_is_not_cut():
    assert cut(Group("a", 1), 8, 1) is None
    assert cut(Group("a", 8, constraints=(Constraint("whole", 1, "norm"),)), 8, 1) is None
    assert cut(Group("a", 8, constraints=(Constraint("equal", 8, "conv"),)), 8, 1) is None


def test_the_generic_rule_orders_the_inner_channels_of_residual_blocks():
    model = resnext_cifar(depth=11, cardinality=2, base_width=8, width=0.5)
    placed = place(channel_graph(model), dict(model.named_modules()), **FREE)
    inner = [f"stage{s}.0.{layer}" for s in (1, 2, 3) for layer in ("reduce", "grouped")]
    assert list(placed.owned) == ["conv1", *inner]
    assert "addition" in placed.notes["stage1.0.expand"]
    assert "output" in placed.notes["fc"]
    model = mobilenet_v2(width=0.25)
    placed = place(channel_graph(model), dict(model.named_modules()), **FREE)
    assert placed.notes["stage2.1.depthwise"] == "carries the channels of stage2.1.expand"
    assert "stage2.1.project" not in placed.owned


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.outer = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.outer(self.inner(x).relu()))


def test_a_rule_that_would_break_an_addition_is_warned_of_and_left_out():
    model = Residual()
    layers = dict(model.named_modules())
    graph = channel_graph(model)
    with pytest.warns(lb.LeanBayesWarning, match="break the addition"):
        placed = place(graph, layers, groups=4, base=1, order=("outer", "inner"))
    assert list(placed.owned) == ["inner"]
    placed = place(graph, layers, groups=4, base=1, order=("outer", "stem"))  # both sides: nothing breaks
    assert [group.size for group, _ in placed.owned["stem"]] == [8]
    assert list(place(graph, layers, groups=4, base=1, order=None).owned) == ["inner"]
    assert place(graph, layers, groups=4, base=1, order=()).owned == {}
    with pytest.raises(ConversionError, match="'convolution' names no layer"):
        check_order(graph, ("convolution",))


def test_a_stream_that_is_ordered_as_a_whole_stays_whole():
    model = Residual().double()
    lb.bayesianize_(model, lb.Nested(groups=4, base_groups=1, order=("*",)))
    lb.set_width_(model, 0.5)
    x = torch.randn(5, 3, dtype=torch.double)
    with lb.using(mean_only=True):
        found = model(x)
    mask = (torch.arange(8) < 4).double()
    means = {n: (m.mean("weight"), m.mean("bias")) for n, m in model.named_modules() if hasattr(m, "posteriors")}

    def through(name, x):
        return nn.functional.linear(x, *means[name])

    stem = through("stem", x)
    inner = through("inner", stem * mask).relu()
    expected = through("head", (stem + through("outer", inner * mask)) * mask)
    assert torch.allclose(found, expected)
