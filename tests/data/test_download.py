from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from leanbayes.data import catalogue, download, idx, load, names
from leanbayes.data.download import Remote, fetch
from leanbayes.errors import DataError

from .conftest import write_idx_set, write_uci


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.ThreadingHTTPServer]:
    """Serves tmp_path/served on this machine; `requests` lists what was asked for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        served.requests = []  # type: ignore[attr-defined]
        served.url = f"http://127.0.0.1:{served.server_port}/"  # type: ignore[attr-defined]
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        yield served
        served.shutdown()


def publish(tmp_path: Path, server: http.server.ThreadingHTTPServer, content: bytes = b"content") -> Remote:
    (tmp_path / "served" / "file.gz").write_bytes(content)
    return Remote("file.gz", hashlib.md5(content).hexdigest(), (f"{server.url}file.gz",))  # type: ignore[attr-defined]


def test_a_file_is_fetched_once(tmp_path: Path, server: http.server.ThreadingHTTPServer) -> None:
    remote = publish(tmp_path, server)
    with pytest.raises(DataError, match=r"not in the cache at .*file.gz; http://.* has it, but download=False"):
        fetch(remote, tmp_path / "here", download=False)
    for _ in range(3):
        assert fetch(remote, tmp_path / "here").read_bytes() == b"content"
    assert fetch(remote, tmp_path / "here", download=False).is_file()
    assert server.requests == ["/file.gz"]  # type: ignore[attr-defined]


def test_a_checksum_that_differs_leaves_nothing_behind(tmp_path: Path, server: http.server.ThreadingHTTPServer) -> None:
    remote = publish(tmp_path, server)
    (tmp_path / "served" / "file.gz").write_bytes(b"something else")
    received = hashlib.md5(b"something else").hexdigest()
    with pytest.raises(DataError, match=r"file.gz could not be downloaded") as caught:
        fetch(remote, tmp_path / "here")
    assert remote.md5 in str(caught.value)
    assert received in str(caught.value)
    assert not list((tmp_path / "here").iterdir())


def test_a_damaged_copy_in_the_cache_is_fetched_again(tmp_path: Path, server: http.server.ThreadingHTTPServer) -> None:
    remote = publish(tmp_path, server)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file.gz").write_bytes(b"cont")
    assert fetch(remote, tmp_path / "here").read_bytes() == b"content"


def test_the_next_mirror_is_tried_and_all_failures_are_told(
    tmp_path: Path, server: http.server.ThreadingHTTPServer
) -> None:
    good = publish(tmp_path, server)
    gone, closed = f"{server.url}gone.gz", "http://127.0.0.1:9/file.gz"  # type: ignore[attr-defined]
    assert fetch(Remote(good.file, good.md5, (gone, closed, *good.urls)), tmp_path / "here").is_file()
    with pytest.raises(DataError, match=r"gone.gz could not .*404.*; http://127.0.0.1:9.*are you offline\?"):
        fetch(Remote("other.gz", good.md5, (gone, closed)), tmp_path / "here")


def test_the_cache_is_pooch_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    assert download.cache("uci/yacht") == Path(pooch.os_cache("leanbayes")) / "uci-yacht"


def test_a_whole_set_is_downloaded_and_read(
    tmp_path: Path, server: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = write_idx_set(tmp_path / "served")
    sums = {}
    for path in (tmp_path / "served" / file for files in idx._FILES.values() for file in files):
        content = gzip.compress(path.read_bytes())
        path.with_name(f"{path.name}.gz").write_bytes(content)
        sums[path.name] = hashlib.md5(content).hexdigest()
    facts = catalogue.entry("kmnist").facts
    monkeypatch.setitem(facts, "urls", [server.url])  # type: ignore[attr-defined]
    monkeypatch.setitem(facts, "md5", sums)
    loaded = load("kmnist", normalise=False, val_fraction=0)
    np.testing.assert_array_equal((loaded.test.tensors[0][:, 0] * 255).round().numpy(), parts["test"][0])
    assert len(server.requests) == 4  # type: ignore[attr-defined]
    assert len(load("kmnist", download=False).train) == 36  # from the cache alone


def test_offline_says_what_was_looked_for_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(catalogue.entry("mnist").facts, "urls", ["http://127.0.0.1:9/"])
    with pytest.raises(DataError) as caught:
        load("mnist", root=tmp_path)
    message = str(caught.value)
    for part in (
        "mnist: expected the file train-images-idx3-ubyte",
        str(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"),
        "http://127.0.0.1:9/train-images-idx3-ubyte.gz",
        str(tmp_path / "cache" / "mnist"),
        "are you offline?",
        "set LEANBAYES_DATA=FOLDER",
        "load('digits')",
    ):
        assert part in message
    with pytest.raises(DataError, match="nothing, since LEANBAYES_DATA is not set and no root= was given"):
        load("mnist", download=False)


@pytest.mark.parametrize("how", ["root", "LEANBAYES_DATA"])
def test_a_root_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    nowhere = tmp_path / "nowhere"
    if how == "LEANBAYES_DATA":
        monkeypatch.setenv(how, str(nowhere))
    with pytest.raises(DataError, match=f"{how}: expected a folder of data sets, received .*nowhere"):
        load("mnist", root=nowhere if how == "root" else None)
    assert len(load("digits").test)  # what is embedded does not care


def test_root_overrides_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path / "a", count=20)
    write_idx_set(tmp_path / "b", count=30)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path / "a"))
    assert len(load("mnist").test) == 20
    assert len(load("mnist", root=str(tmp_path / "b")).test) == 30


def test_every_set_asks_for_its_official_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Remote] = []

    def refuse(remote: Remote, folder: Path, *, download: bool) -> Path:
        asked.append(remote)
        raise DataError("refused")

    monkeypatch.setattr("leanbayes.data.files.fetch", refuse)
    public = [name for name, line in names().items() if "embedded" not in line and name != "lidc"]
    for name in public:
        with pytest.raises(DataError, match=f"{name}: expected the file"):
            load(name)
    assert len(asked) == len(public)
    assert all(remote.urls[0].split("?")[0].endswith(f"/{remote.file}") for remote in asked)
    assert all(len(remote.md5) == 32 for remote in asked)


def test_a_uci_split_needs_five_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fake(remote: Remote, folder: Path, *, download: bool) -> Path:
        asked.extend(remote.urls)
        return tmp_path / "published" / remote.file

    write_uci(tmp_path / "published")
    monkeypatch.setattr("leanbayes.data.files.fetch", fake)
    assert [len(part) for part in load("uci/boston", split=1).parts.values()] == [24, 3, 3]
    assert [url.partition("UCI_Datasets/bostonHousing/data/")[2] for url in asked] == [
        "data.txt",
        "index_features.txt",
        "index_target.txt",
        "index_train_1.txt",
        "index_test_1.txt",
    ]
