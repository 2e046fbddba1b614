"""A sample of the forged files, and that the harness notices what it is there for."""

import pytest

from tests.soak import file_kinds, files

SAMPLE = [*range(26), *range(400, 434)]


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_forged_file(seed):
    outcome = files.case(seed)
    assert outcome.failure is None


def _slow(path, context):
    total = 0
    for number in range(10**9):
        total += number


def _greedy(path, context):
    bytearray(400 * 2**20)


def _raw(path, context):
    raise KeyError("raw")


def _changes(path, context):
    context.append(1)
    raise files.LeanBayesError("refused")


@pytest.mark.parametrize(
    ("read", "kind"), [(_greedy, "memory"), (_raw, "raw KeyError"), (_changes, "something was changed")]
)
def test_the_harness_notices(monkeypatch, read, kind):
    bad = file_kinds.Kind("x", lambda chance: b"", read, lambda path: [], list)
    monkeypatch.setattr(file_kinds, "KINDS", {"bad": bad})
    assert files.case(0).kind.startswith(kind)


def test_the_harness_notices_what_never_ends(monkeypatch):
    monkeypatch.setattr(files, "WALL_SECONDS", 1)
    bad = file_kinds.Kind("x", lambda chance: b"", _slow)
    monkeypatch.setattr(file_kinds, "KINDS", {"bad": bad})
    assert files.case(0).kind == "crash SIGALRM"
