"""Options of a network on the command line."""

from __future__ import annotations

import pytest

from leanbayes.cli.networks import describe, parsed
from leanbayes.data import load
from leanbayes.errors import ConfigError


def test_options_go_over_those_that_fit_the_data():
    described = describe("resnet18_cifar", load("digits"), options="width=4")
    assert described["options"] == {"num_classes": 10, "in_channels": 1, "width": 4}


def test_a_narrow_network_is_counted_as_such(run, run_json):
    plans = [run_json("plan", "--model", "resnet18_cifar", "--options", f"width={width}") for width in (2, 4)]
    assert plans[0]["parameters_before"] < plans[1]["parameters_before"] < 100_000
    for bad, said in {"width": "name=value", "wide=4": "wide", "width=,": "name=value"}.items():
        code, _, err = run("plan", "--model", "resnet18_cifar", "--options", bad)
        assert code != 0
        assert said in err


def test_a_factory_has_its_own_options():
    with pytest.raises(ConfigError, match="set them in the factory"):
        describe("mine:net", load("digits"), options="width=4")


def test_values_are_what_they_look_like():
    assert parsed("a=1,b=0.5,c=false,d=relu") == {"a": 1, "b": 0.5, "c": False, "d": "relu"}
    assert parsed("") == {}
