"""Small files that claim, or unpack to, far more than they hold: refused soon, without the memory."""

from __future__ import annotations

import functools
import gzip
import io
import os
import pickle
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_matrix

from leanbayes.data import read_cifar, read_idx, read_svhn, read_uci
from leanbayes.data.npz import read_npy, read_npz
from leanbayes.data.pickles import read_pickle
from leanbayes.errors import DataError

SECONDS, MEGABYTES = 2, 200


def refused(match: str, function: Callable[..., object], *arguments: object) -> None:
    """A call raises a DataError, soon, and with little memory: measured apart, since tracemalloc takes time."""
    start = time.process_time()
    with pytest.raises(DataError, match=match):
        function(*arguments)
    assert time.process_time() - start < SECONDS
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match):
            function(*arguments)
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES * 2**20
    finally:
        tracemalloc.stop()


PICKLES = {
    "a key whose hash takes 2^40 steps": b"\x80\x02})" + b"q\x00h\x00\x86" * 40 + b"K\x01s.",
    "the same by copies on the stack": b"\x80\x02})" + b"2\x86" * 40 + b"K\x01s.",
    "a place in the memo of 2 GB": b"\x80\x02]r\xff\xff\xff\x0f.",
    "a text of 4 GB": b"\x80\x02X\xff\xff\xff\xff.",
    "bytes of 2^60": b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".",
    "a bytearray of 2^40": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "many arguments for many calls": (
        b"(" + b"N" * 50_000 + b"tq\x00cnumpy\nndarray\nq\x01" + b"h\x01h\x00R" * 50_000 + b"."
    ),
    "many copies of one text": (
        b"c_codecs\nencode\nq\x00X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"X\x06\x00\x00\x00latin1\x86q\x01"
        + b"h\x00h\x01R" * 5000 + b"."
    ),
    "the type of an array that takes 2^60 steps to print": (
        b"cnumpy\ndtype\n]" + b"q\x00(h\x00h\x00l" * 60 + b"\x85R."
    ),
    "a shape with an enormous product": (
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01(" + b"\x8a\xff" + b"\x7f" * 255 + b"2" * 3 + b"tNNNtb."
    ),
    "millions of values": b"(" + b"N" * 2_000_000 + b"l.",
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles(name: str) -> None:
    refused("batch: expected a", read_pickle, PICKLES[name], Path("batch"))


def test_a_published_batch_is_far_from_the_limits() -> None:
    names = [f"{i:030d}.png" for i in range(50_000)]
    batch = {"data": np.zeros((50_000, 3), np.uint8), "fine_labels": [3] * 50_000, "coarse_labels": [300] * 50_000}
    read = read_pickle(pickle.dumps({**batch, "filenames": names}, protocol=2), Path("train"))
    assert read["filenames"] == names
    assert read["data"].shape == (50_000, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x08\x03" + b"\xff" * 12, "cannot hold more"),
        (b"\0\0\x08\xff" + b"\0" * 4 * 255, "magic number"),
        (b"\0\0\x08\x05" + b"\xff" * 16 + b"\0" * 4, "cannot hold more"),
        (gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 2**31) + b"\0" * 10**6), "cannot hold more"),
        (gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 9) + b"\0" * 10**8), "received more"),
        (gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 10**8) + b"\0" * 10**8), "cannot hold more"),
    ],
    ids=range(6),
)
def test_idx(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(message, read_idx, tmp_path / "file")


def member(name: str, size: int, **options: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in options.items():
        setattr(info, key, value)
    return info


@functools.cache
def archives() -> dict[str, bytes]:
    bomb, many, sparse = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz", compresslevel=9) as archive:
        archive.addfile(member("test_batch", 150 * 2**20), io.BytesIO(b"\0" * (150 * 2**20)))
    with tarfile.open(fileobj=many, mode="w:gz") as archive:
        for i in range(20_000):
            archive.addfile(member(f"file {i}", 0))
    with tarfile.open(fileobj=sparse, mode="w", format=tarfile.PAX_FORMAT) as archive:
        headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.size": str(2**40),
            "GNU.sparse.map": "0,1",
        }
        archive.addfile(
            member("test_batch", 1, pax_headers={**headers, "GNU.sparse.name": "test_batch"}), io.BytesIO(b"x")
        )
    long_name = bytearray(member("test_batch", 2**33, type=tarfile.GNUTYPE_LONGNAME).tobuf(tarfile.GNU_FORMAT))
    return {
        "bomb": bomb.getvalue(),
        "many": many.getvalue(),
        "sparse": sparse.getvalue(),
        "long name": bytes(long_name) + b"\0" * 1024,
        "size": bytes(member("test_batch", 2**35).tobuf(tarfile.GNU_FORMAT)) + b"\0" * 1024,
    }


@pytest.mark.parametrize("name", ["bomb", "many", "sparse", "long name", "size"])
def test_archives(tmp_path: Path, name: str) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(archives()[name])
    refused("cifar-10-python.tar.gz: expected", read_cifar, tmp_path / "cifar-10-python.tar.gz", ["test_batch"])


def matrix(name: bytes, flags: int, sizes: tuple[int, ...], kind: int, length: int, values: bytes) -> bytes:
    shape = struct.pack(f"<{len(sizes)}i", *sizes)
    body = struct.pack("<IIII", 6, 8, flags, 0) + struct.pack("<II", 5, len(shape)) + shape + b"\0" * (-len(shape) % 8)
    body += struct.pack("<II", 1, len(name)) + name + b"\0" * (-len(name) % 8)
    body += struct.pack("<II", kind, length) + values
    return struct.pack("<II", 14, len(body)) + body


def matlab(*elements: bytes) -> bytes:
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    return header + b"".join(elements)


def packed(element: bytes) -> bytes:
    data = zlib.compress(element)
    return struct.pack("<II", 15, len(data)) + data


SIZES = (32, 32, 3, 10**5)
MATLAB: dict[str, Callable[[], bytes]] = {
    "sizes": lambda: matlab(matrix(b"X", 9, SIZES, 2, 3072 * 10**5, b"\0" * 64)),
    "packed sizes": lambda: matlab(packed(matrix(b"X", 9, SIZES, 2, 3072 * 10**5, b"\0" * 64))),
    "bomb": lambda: matlab(packed(matrix(b"X", 9, (32, 32, 3, 50_000), 2, 3072 * 50_000, b"\0" * (3072 * 50_000)))),
    "bomb of another name": lambda: matlab(packed(matrix(b"Z", 9, (1, 10**8), 2, 10**8, b"\0" * 10**8))),
    "long name": lambda: matlab(packed(matrix(b"X" * 10**7, 9, (1, 1), 2, 1, b"\0" * 8))),
    "negative": lambda: matlab(matrix(b"X", 9, (-32, -32, 3, 1), 2, 3072, b"\0" * 3072)),
    "widened": lambda: matlab(matrix(b"X", 6, (32, 32, 3, 7000), 2, 3072 * 7000, b"\0" * (3072 * 7000))),
    "packed within packed": lambda: matlab(packed(packed(matrix(b"X", 9, (1, 1), 2, 1, b"\0" * 8)))),
    "length": lambda: matlab(struct.pack("<II", 14, 2**32 - 1)),
    "many": lambda: matlab(*[matrix(b"Z", 9, (1, 1), 2, 1, b"\0" * 8)] * 50_000),
}


@pytest.mark.parametrize("name", MATLAB)
def test_matlab(tmp_path: Path, name: str) -> None:
    (tmp_path / "test_32x32.mat").write_bytes(MATLAB[name]())
    refused("test_32x32.mat: expected", read_svhn, tmp_path / "test_32x32.mat")


def test_matlab_of_other_kinds(tmp_path: Path) -> None:
    path, labels = tmp_path / "test_32x32.mat", np.ones((4, 1), np.uint8)
    for content in (csc_matrix((10**7, 10**4)), "text", np.array([{}, {}]), np.ones((2, 2), complex), {"a": 1}):
        savemat(path, {"X": content, "y": labels}, do_compression=True)
        refused("test_32x32.mat: expected", read_svhn, path)


def npy(shape: str, kind: str = "<f4", values: bytes = b"") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values


NPY = {
    "huge": npy(f"({2**40},)"),
    "product": npy(f"({2**40}, {2**40}, 0)"),
    "negative": npy("(-1,)"),
    "no width": npy("(1000000000000,)", "<S0"),
    "objects": npy("(1,)", "|O", pickle.dumps([1])),
    "nested": npy("(" * 5000 + ")" * 5000),
    "dimensions": npy(f"({'1,' * 60})", values=b"\0" * 4),
    "long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{",
    "truncated": npy("(100,)", values=b"\0" * 399),
    "more": npy("(100,)", values=b"\0" * 401),
}


@pytest.mark.parametrize("name", NPY)
def test_npy_and_npz(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.npy").write_bytes(NPY[name])
    refused("a.npy: expected", read_npy, tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", NPY[name])
    refused("a.npz: expected", read_npz, tmp_path / "a.npz", ["x"])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_packed_array_of_zeros(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("x.npy", npy(f"({2**25},)", values=b"\0" * 2**27))
    refused("a.npz: expected a whole", read_npz, tmp_path / "a.npz", ["x"])


@pytest.mark.filterwarnings("ignore:loadtxt")
def test_tables_of_numbers(tmp_path: Path) -> None:
    for name, text in {"index_features": "0", "index_target": "1", "index_train_0": "0", "index_test_0": "1"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    for content in (b"1 2\n3 1e999", b"1 2\n3", b"\xff\xfe\0", b"#" * 100, b"9" * 10**6, b"1 " * 10 + b"\n1"):
        (tmp_path / "data.txt").write_bytes(content)
        refused("expected", read_uci, tmp_path)
    (tmp_path / "data.txt").write_bytes(b"1 2\n" * 5_000_000)
    refused("at most", read_uci, tmp_path)
    (tmp_path / "data.txt").write_bytes(b"1 2\n3 4\n")
    (tmp_path / "index_train_0.txt").write_text("1e300")
    refused("whole numbers", read_uci, tmp_path)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused("regular", read_idx, tmp_path / "pipe")
    refused("regular", read_svhn, tmp_path / "pipe")
    refused("regular", read_npz, tmp_path / "pipe", ["x"])
    refused("regular", read_cifar, tmp_path / "pipe", ["test_batch"])
    refused("regular", read_idx, Path("/dev/zero"))
