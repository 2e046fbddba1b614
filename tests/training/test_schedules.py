import math
import pickle

import pytest

from leanbayes.config import from_dict, to_dict
from leanbayes.errors import ConfigError
from leanbayes.training.schedules import Constant, cyclic, evaluate, schedule, warmup


def test_shapes():
    cosine = warmup(1.0, 0.0, steps=10, shape="cosine")
    assert [cosine(t) for t in (0, 5, 10, 99)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    linear = warmup(0.2, 1.0, steps=8)
    assert [linear(t) for t in (0, 4, 8)] == pytest.approx([0.2, 0.6, 1.0])
    wave = cyclic(0.0, 1.0, period=10, rising=0.5, shape="cosine")
    assert wave(3) == wave(13)
    assert wave(5) == wave(9) == 1.0


@pytest.mark.parametrize("one", [warmup(0, 1, steps=5), cyclic(0, 1, period=5), Constant(0.3)])
def test_json_and_pickle(one):
    assert from_dict(to_dict(one)) == one == pickle.loads(pickle.dumps(one))


@pytest.mark.parametrize(
    "make",
    [
        lambda: warmup(0, 1, steps=0),
        lambda: warmup(0, 1, steps=1.5),
        lambda: warmup(math.nan, 1, steps=5),
        lambda: warmup(0, 1, steps=5, shape="cubic"),
        lambda: cyclic(0, 1, period=5, rising=0.0),
        lambda: schedule(-1),
        lambda: schedule(math.inf),
        lambda: schedule("1"),
        lambda: schedule(True),
        lambda: schedule(None),
        lambda: schedule(lambda step: "a"),
        lambda: evaluate(warmup(0, -1, steps=1), 1),
    ],
)
def test_refused(make):
    with pytest.raises(ConfigError):
        make()
