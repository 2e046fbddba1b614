"""What requests and operators may choose."""

import pytest

from leanbayes.errors import ConfigError, DataError
from leanbayes.serve.config import Settings
from leanbayes.serve.metrics import Metrics
from leanbayes.serve.options import chosen, options

SETTINGS = Settings(samples=8, max_samples=64, deadline=500.0, min_confidence=0.3)


def known(task="classification", has_width=True, is_conformal=True, can_sample=True):
    return options(SETTINGS, task, has_width=has_width, is_conformal=is_conformal, can_sample=can_sample)


def test_what_is_not_chosen_is_as_the_operator_says():
    assert chosen({}, known()) == {
        "deadline": 500.0, "samples": 8, "seed": 0, "draws": False, "width": None, "min_confidence": 0.3,
        "max_entropy": None, "max_information": None, "max_set": None,
    }  # fmt: skip
    assert chosen({"samples": None, "width": None}, known())["samples"] == 8


def test_texts_of_an_address_and_values_of_json_mean_the_same():
    texts = {"samples": "16", "width": "0.5", "draws": "true", "deadline": "100", "seed": "7"}
    values = {"samples": 16, "width": 0.5, "draws": True, "deadline": 100, "seed": 7}
    assert chosen(texts, known()) == chosen(values, known())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"samples": 65}, "samples: expected an integer from 1 to 64, received 65"),
        ({"samples": 0}, "samples: expected"),
        ({"samples": "1e1"}, "samples: expected"),
        ({"samples": True}, "samples: expected"),
        ({"samples": [1]}, "samples: expected"),
        ({"samples": "9" * 9000}, "samples: expected"),
        ({"width": 0.01}, "width: expected a number from 0.05 to 1"),
        ({"width": "NaN"}, "width: expected"),
        ({"width": "Infinity"}, "width: expected"),
        ({"deadline": 501}, "deadline: expected a number from 1 to 500"),
        ({"draws": 1}, "draws: expected a boolean, received 1"),
        ({"seed": -1}, "seed: expected"),
        ({"seed": 2**63}, "seed: expected"),
        ({"max_entropy": 1e300}, "max_entropy: expected"),
        ({"sample": 3}, "expected options among deadline, samples,"),
    ],
)
def test_what_is_beyond_the_limits_is_refused(given, said):
    with pytest.raises(DataError, match=said):
        chosen(given, known())


def test_only_what_a_model_has_can_be_chosen():
    assert "max_std" in known("regression")
    assert not {"min_confidence", "max_set"} & set(known("regression"))
    assert "width" not in known(has_width=False)
    assert "max_set" not in known(is_conformal=False)
    assert not {"samples", "seed", "draws"} & set(known(can_sample=False))


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 300}, {"max_samples": 0}, {"min_width": 0.0}, {"min_confidence": 1.5}, {"max_wait": -1.0},
        {"deadline": 0.0}, {"max_set": 0}, {"max_body": -1}, {"max_entropy": float("nan")}, {"seed": -1},
    ],
)  # fmt: skip
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match="--" + next(iter(wrong)).replace("_", "-")):
        Settings(**wrong)


def test_metrics_of_several_workers_add_up_and_outlive_them(tmp_path):
    Metrics.create(tmp_path / "metrics", 2)
    first, second = (Metrics(tmp_path / "metrics", number, 2) for number in range(2))
    first.count("requests_total", "200")
    second.count("requests_total", "200", 2)
    second.count("requests_total", "418")
    second.count("requests_in_progress", by=3)
    for value in (0.004, 0.005, 0.2, 99.0):
        first.observe("batch_seconds", value)
    again = Metrics(tmp_path / "metrics", 1, 2)  # the second has died with three requests
    lines = again.text().splitlines()
    assert 'leanbayes_requests_total{code="200"} 3' in lines
    assert 'leanbayes_requests_total{code="other"} 1' in lines
    assert "leanbayes_requests_in_progress 0" in lines
    assert 'leanbayes_batch_seconds_bucket{le="0.005"} 2' in lines
    assert 'leanbayes_batch_seconds_bucket{le="0.25"} 3' in lines
    assert 'leanbayes_batch_seconds_bucket{le="+Inf"} 4' in lines
    assert "leanbayes_batch_seconds_count 4" in lines
    assert "leanbayes_batch_seconds_sum 99.209" in lines
