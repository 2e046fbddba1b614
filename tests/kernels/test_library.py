"""When there are compiled kernels, and what is said when there are none."""

import ctypes

import pytest

from leanbayes.kernels import library


@pytest.fixture
def afresh():
    library._opened.cache_clear()
    yield
    library._opened.cache_clear()


@pytest.mark.skipif(library.library() is None, reason="no compiled kernels")
def test_a_library_of_other_sources_is_not_called(afresh, monkeypatch):
    monkeypatch.setattr(library, "INTERFACE", -1)
    assert "other sources" in library.reason()


def test_a_library_that_does_not_load_is_a_reason(afresh, monkeypatch, tmp_path):
    broken = tmp_path / "kernels.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(library, "FILE", broken)
    assert "do not load" in library.reason()
    monkeypatch.setattr(library, "FILE", tmp_path / "none.so")
    library._opened.cache_clear()
    assert "not built" in library.reason()


@pytest.mark.skipif(library.library() is None, reason="no compiled kernels")
def test_the_library_has_every_function_that_is_called():
    sources = " ".join(path.read_text() for path in library.FILE.parents[1].glob("*.py"))
    for more in ("layers/perturb.py", "kl_compiled.py"):
        sources += (library.FILE.parents[2] / more).read_text()
    names = {part.split('"')[0] for part in sources.split('call("')[1:]}
    assert {"leanbayes_perturb", "leanbayes_divergence"} <= names
    native = ctypes.CDLL(str(library.FILE))
    assert not [name for name in names if not hasattr(native, name)]
