"""Things that take turns: the first turn does not count, and a slow spell hits all alike."""

import pytest

from leanbayes import timing


def test_turns_and_their_median_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ran = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def work(name: str, seconds: float) -> None:
        ran.append(name)
        now[0] += seconds * (100 if len(ran) <= 2 else 10 if 2 < len(ran) <= 4 else 1)

    found = timing.in_turns({"a": lambda: work("a", 1.0), "b": lambda: work("b", 3.0)}, turns=3)
    assert ran == ["a", "b"] * 4
    assert found == {"a": [10.0, 1.0, 1.0], "b": [30.0, 3.0, 3.0]}
    assert timing.times_as_long(found["b"], found["a"]) == 3.0
    assert timing.times_as_long([2.0, 8.0, 3.0], [1.0, 1.0, 1.0]) == 3.0
