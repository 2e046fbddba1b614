import dataclasses
import json
import math
import subprocess
import sys
from typing import Any, Literal

import pytest

import leanbayes as lb
from leanbayes import checks
from leanbayes.config import configurable, from_dict, to_dict
from leanbayes.errors import ConfigError


@configurable
@dataclasses.dataclass(frozen=True)
class Sample:
    number: float = 1.0
    count: int = 2
    flag: bool = True
    text: str | None = None
    choice: Literal["a", "b"] = "a"
    pair: tuple[int, float] = (1, 2.0)
    row: tuple[float, ...] = ()
    names: tuple[str, ...] | None = None
    table: dict[str, int] = dataclasses.field(default_factory=dict)
    inner: lb.Normal | lb.StudentT | None = None
    anything: Any = None


VALUES = [
    Sample(),
    Sample(number=math.inf, text="x", choice="b", pair=(3, 4.5), row=(1.0, 2.0), table={"k": 1}),
    Sample(number=-math.inf, inner=lb.Normal(std=0.3), anything=[1, "x", None]),
    Sample(inner=lb.StudentT()),
]


@pytest.mark.parametrize("value", VALUES)
def test_the_round_trip_through_json_is_exact(value):
    assert from_dict(json.loads(json.dumps(to_dict(value), allow_nan=False))) == value


def test_nan_survives_and_whole_numbers_become_floats():
    assert math.isnan(from_dict(to_dict(Sample(number=math.nan))).number)
    assert isinstance(from_dict({"kind": "Sample", "number": 3}).number, float)


BAD = {
    "expected a mapping with a 'kind', received 3": 3,
    "expected a mapping with a 'kind', received None": None,
    "expected a mapping with a 'kind', received {}": {},
    "received {'kind': 3}": {"kind": 3},
    "unknown config kind 'Nope'; known: .*MeanField": {"kind": "Nope"},
    "written by a newer leanbayes": {"kind": "Sample", "version": 2},
    "expected a version of 1 or more, received True": {"kind": "Sample", "version": True},
    "expected a version of 1 or more, received 0": {"kind": "Sample", "version": 0},
    "expected a version of 1 or more, received '1'": {"kind": "Sample", "version": "1"},
    "unknown field 'nmber'; known: .*number": {"kind": "Sample", "nmber": 1.0},
    "Sample: unknown field": {"kind": "Sample", 3: 1, "x": 2},
    "Sample.number: expected float, received 'x'": {"kind": "Sample", "number": "x"},
    "Sample.number: expected float, received True": {"kind": "Sample", "number": True},
    "Sample.number: expected a number within a float": {"kind": "Sample", "number": 10**400},
    "Sample.count: expected int, received 1.5": {"kind": "Sample", "count": 1.5},
    "Sample.count: expected int, received False": {"kind": "Sample", "count": False},
    "Sample.flag: expected bool, received 1": {"kind": "Sample", "flag": 1},
    "Sample.choice: expected": {"kind": "Sample", "choice": "c"},
    "Sample.pair: expected": {"kind": "Sample", "pair": [1, 2.0, 3]},
    "Sample.row: expected": {"kind": "Sample", "row": [1.0, "x"]},
    "Sample.table: expected": {"kind": "Sample", "table": {"k": "x"}},
    "Sample.inner: expected": {"kind": "Sample", "inner": {"kind": "LogUniform"}},
    "unknown config kind 'Nested.Nope'": {"kind": "Sample", "inner": {"kind": "Nested.Nope"}},
    "Sample.number: expected inf, -inf or nan, received '1'": {"kind": "Sample", "number": {"float": "1"}},
    "MeanField.std: expected a finite number above 0, received -1": {"kind": "MeanField", "std": -1},
    "MeanField.std: expected a finite number above 0, received nan": {"kind": "MeanField", "std": {"float": "nan"}},
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_unknown_ill_typed_or_from_the_future_is_refused(message):
    with pytest.raises(ConfigError, match=message):
        from_dict(BAD[message])


def test_only_registered_frozen_dataclasses_are_written():
    @dataclasses.dataclass(frozen=True)
    class Stranger:
        pass

    with pytest.raises(ConfigError, match="@configurable"):
        to_dict(Stranger())
    with pytest.raises(ConfigError, match="plain value"):
        to_dict(Sample(anything=object()))
    with pytest.raises(TypeError, match="frozen"):
        configurable(dataclasses.make_dataclass("Loose", []))
    with pytest.raises(TypeError, match="two configs are called Sample"):
        configurable(dataclasses.make_dataclass("Sample", [], frozen=True))


@pytest.mark.parametrize("value", ["x", None, True, math.nan, math.inf, -1.0, 0.0, 10**400, [1], object()])
def test_checks_refuse_with_the_field_named(value):
    if value is not None:  # a scale relative to the layer's weights
        with pytest.raises(ConfigError, match=r"MeanField.std"):
            lb.MeanField(std=value)
    with pytest.raises(ConfigError, match=r"Normal.std"):
        lb.Normal(std=value)


@pytest.mark.parametrize("value", ["yes", 1, None, 0.5])
def test_flags_are_true_or_false(value):
    with pytest.raises(ConfigError, match="expected True or False"):
        lb.MeanField(random_bias=value)
    with pytest.raises(ConfigError, match="expected True or False"):
        lb.VariationalDropout(keep_weights=value)


@pytest.mark.parametrize("value", [3, None, ["local"], "Local", True, object()])
def test_choices_are_exact(value):
    with pytest.raises(ConfigError, match="expected one of 'local', 'weight', 'flipout'"):
        lb.MeanField(estimator=value)


def test_bounds_may_be_open():
    lb.Dropout(0.0)
    with pytest.raises(ConfigError, match=r"of at least 0 and below 1, received 1.0"):
        lb.Dropout(1.0)
    with pytest.raises(ConfigError, match=r"of at least 0 and below 1, received -0.1"):
        lb.Dropout(-0.1)


def test_configs_cost_no_torch():
    code = "import sys, leanbayes.methods, leanbayes.priors, leanbayes.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_long_values_are_cut_in_messages():
    assert len(checks.short("x" * 1000)) == 60
