"""Widths at run time: what can be set, what comes back, and what it costs."""

import copy
import math
import time

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert import record
from leanbayes.errors import ConversionError
from leanbayes.models import vgg11_bn
from leanbayes.ordering.unit import units


def network(method=None, norm=True):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(24)] if norm else []
    model = nn.Sequential(nn.Linear(4, 24), *middle, nn.ReLU(), nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 3))
    lb.bayesianize_(model, method or lb.Nested(groups=8, base_groups=2))
    return model


DATA = (torch.randn(1024, 4, generator=torch.Generator().manual_seed(1)), torch.arange(1024) % 3)


def test_widths_are_multiples_of_a_group_from_the_base_on():
    model = network()
    assert lb.widths(model, of="0") == [g / 8 for g in range(2, 9)]
    assert lb.widths(model, of="3") == [g / 6 for g in range(2, 7)]  # fewer channels, the base in proportion: 1.5
    assert lb.widths(model) == sorted({*lb.widths(model, of="0"), *lb.widths(model, of="3")})
    for width in lb.widths(model):
        assert max(lb.set_width_(model, width).values()) >= width


@pytest.mark.parametrize(
    ("width", "groups"), [(1.0, 8), (0.875, 7), (0.87, 7), (0.876, 8), (0.5, 4), (1e-9, 2), (1, 8)]
)
def test_a_width_is_rounded_up_to_whole_groups_and_to_the_base(width, groups):
    model = network()
    assert lb.set_width_(model, width)["0"] == groups / 8
    assert len(units(model)[0].kept_channels(units(model)[0].width)) == 3 * groups


def test_floats_that_mean_a_whole_number_of_groups_are_not_rounded_up():
    model = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 2))
    lb.bayesianize_(model, lb.NestedDropout(groups=30, base_groups=1))
    for g in range(1, 31):
        assert lb.set_width_(model, g / 30)["0"] == lb.set_width_(model, torch.tensor(g / 30).item())["0"] == g / 30


@pytest.mark.parametrize(
    "width", [0, 0.0, -0.5, 1.0001, 2, math.nan, math.inf, "half", True, [0.5], {"0": 0}, {}, {"0": None, "9": 1}]
)
def test_bad_widths_are_refused_and_nothing_changes(width):
    model = network()
    lb.set_width_(model, 0.5)
    before = [unit.get_extra_state() for unit in units(model)]
    with pytest.raises(ConversionError):
        lb.set_width_(model, width)
    assert all(torch.equal(a, unit.get_extra_state()) for a, unit in zip(before, units(model), strict=True))


def test_what_is_no_nested_model_is_refused_with_the_way_out():
    for call in (
        lb.widths,
        lb.importance,
        lb.likely_width,
        lambda m: lb.set_width_(m, 0.5),
        lambda m: lb.truncate_(m, 0.5),
    ):
        with pytest.raises(ConversionError, match=r"lb\.Nested\(\)"):
            call(nn.Linear(2, 2))
    with pytest.raises(ConversionError, match=r"nn\.Module"):
        lb.widths("model")
    with pytest.raises(ConversionError, match="known: 0, 3"):
        lb.set_width_(network(), {"layer": 0.5})
    with pytest.raises(ConversionError, match="rescale"):
        lb.set_width_(network(), 0.5, rescale=1)


def test_layers_may_have_widths_of_their_own_and_some_be_sampled():
    model = network()
    assert lb.set_width_(model, {"3": 0.5}) == {"3": 0.5}
    assert [unit.width for unit in units(model)] == [0, 2]
    lb.set_width_(model, {"*": 1.0})
    assert lb.set_width_(model, {"0": None}) == {"3": 1.0}
    assert lb.set_width_(model, None) == {}


def test_setting_a_width_copies_nothing_and_is_quick():
    model = vgg11_bn()
    lb.bayesianize_(model, lb.NestedDropout())
    before = {name: (p.data_ptr(), p._version) for name, p in (*model.named_parameters(), *model.named_buffers())}
    seconds = []
    for width in (0.25, 0.5, 1.0, None, 0.75):
        start = time.perf_counter()
        lb.set_width_(model, width)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.01  # the least: other programs may run at the same time
    assert before == {
        name: (p.data_ptr(), p._version) for name, p in (*model.named_parameters(), *model.named_buffers())
    }


def test_a_width_survives_files_copies_and_state_dicts(tmp_path):
    model, (x, _) = network(), DATA
    lb.set_width_(model, 0.5)
    model(x)
    expected = lb.predict(model, x[:8], samples=3, task="classification").probs
    path = lb.save(model, tmp_path / "a.safetensors")
    loaded = lb.load(path, into=nn.Sequential(*(copy.deepcopy(m) for m in lb.restore_(copy.deepcopy(model)))))
    other = network()
    other.load_state_dict(model.state_dict())
    for one in (loaded, other, copy.deepcopy(model)):
        assert [unit.width for unit in units(one)] == [unit.width for unit in units(model)] == [3, 2]
        assert torch.equal(lb.predict(one, x[:8], samples=3, task="classification").probs, expected)


def test_batch_norm_statistics_of_a_width_come_from_a_thousand_data():
    model, (x, _) = network(), DATA
    model.train()
    for _ in range(20):
        model(x[torch.randperm(1024)[:64]])
    lb.set_width_(model, 0.25)
    lb.recalibrate_(model, (x,), data=1024)
    assert lb.widths(model)[0] == units(model)[0].steps.base / 8
    assert [unit.width for unit in units(model)] == [1, 1]
    with lb.using(mean_only=True), torch.no_grad():
        before = nn.functional.linear(x, model[0].mean("weight"), model[0].mean("bias"))
    assert torch.allclose(model[1].running_mean, before.mean(0), atol=0.15)


def test_a_temperature_comes_back_with_the_width_it_was_fitted_at(tmp_path):
    model, data = network(), (DATA[0], DATA[0][:, :3].argmax(1))  # targets that can be told
    lb.fit(model, data, epochs=1, lr=0.02, progress=False)

    def temperature():
        return record.get(model).likelihood.get("temperature", 1.0)

    lb.set_width_(model, 0.25)
    narrow = lb.calibrate_(model, data, samples=4, progress=False)
    assert temperature() == narrow != 1.0
    lb.set_width_(model, 1.0)
    assert temperature() == 1.0
    record.get(model).likelihood["temperature"] = 1.75
    lb.set_width_(model, 0.25)
    assert temperature() == narrow
    model2 = lb.load(lb.save(model, tmp_path / "a.safetensors"), into=lb.restore_(network()))
    for one in (model, model2):
        model = one
        lb.set_width_(one, 1.0)
        assert temperature() == 1.75
        lb.set_width_(one, 0.5)
        assert temperature() == 1.0
        lb.set_width_(one, None)
        assert temperature() == 1.0


def test_rescaling_makes_the_full_width_the_average_of_all():
    """B.2: for a linear consumer the rescaled network is the mean over masks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3)).double()
    lb.bayesianize_(model, lb.NestedDropout(groups=8, base_groups=2, tails="geometric", rate=0.2))
    x, beta = torch.randn(5, 4).double(), lb.importance(model)["0"]
    average = torch.zeros(5, 3, dtype=torch.double)
    for width, probability in zip(lb.widths(model), beta, strict=True):
        lb.set_width_(model, width)
        average += probability * model(x)
    lb.set_width_(model, 1.0, rescale=True)
    assert torch.allclose(model(x), average)
    lb.set_width_(model, 1.0)
    assert not torch.allclose(model(x), average)


def test_importance_and_the_most_likely_width():
    model = network()
    with torch.no_grad():
        units(model)[0].logits.copy_(torch.tensor([4.0, 4.0, -4.0, 0.0, 0.0, 0.0]))
    beta = lb.importance(model)["0"]
    assert torch.allclose(beta.sum(), torch.tensor(1.0))
    assert beta.argmax() == 2
    assert lb.likely_width(model)["0"] == 4 / 8
    assert lb.set_width_(model, lb.likely_width(model))["0"] == 4 / 8


def test_keeping_the_most_important_part():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3))
    lb.bayesianize_(model, lb.Nested(groups=12, base_groups=2))
    x = torch.randn(5, 4)
    lb.set_width_(model, 2 / 3)
    with lb.using(mean_only=True):
        expected = model(x)
    lb.set_width_(model, None)
    assert lb.truncate_(model, 2 / 3) == {"0": 8}
    with lb.using(mean_only=True):
        assert torch.equal(model(x), expected)  # what is left is the network
    assert lb.widths(model) == [g / 8 for g in range(2, 9)]
    assert lb.set_width_(model, 1.0) == {"0": 1.0}
    with lb.using(mean_only=True):
        assert torch.equal(model(x), expected)
    lb.set_width_(model, None)
    assert float(lb.importance(model)["0"][:7].sum()) == pytest.approx(1.0)
    with pytest.raises(ConversionError, match="fraction"):
        lb.truncate_(model, 0)
