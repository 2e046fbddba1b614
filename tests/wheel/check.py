"""Runs an installed wheel: the example of README, and a step of SparseSubspace by the compiled kernels.

``make wheel-test`` calls this in an environment that has the wheel, torch and the core dependencies, and no compiler.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import sysconfig
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

EXTRAS = ("matplotlib", "sklearn", "scipy", "PIL", "pooch")
KERNELS_EXPECTED = sys.platform == "linux"


def main(readme: Path) -> None:
    """Exit with an error unless everything works."""
    import leanbayes

    installed = Path(leanbayes.__file__)
    assert installed.is_relative_to(sysconfig.get_path("purelib")), f"expected the wheel, imported {installed}"
    assert not any(map(shutil.which, ("gcc", "cc", "clang"))), "expected no compiler on PATH"
    extras = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not extras, f"expected the core alone, found {extras}"
    block = re.search(r"^```python\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None, f"expected a Python example in {readme}"
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        exec(compile(block[1], str(readme), "exec"), {})
    sparse_step()
    print(f"leanbayes {leanbayes.__version__} from {installed.parent}: README runs, kernels as expected")


def sparse_step() -> None:
    """One training step at 5 % density; on Linux it has to run in the compiled library."""
    import torch
    from torch import nn

    import leanbayes as lb
    from leanbayes.kernels import library

    native = library.library()
    assert (native is not None) == KERNELS_EXPECTED, f"compiled kernels: {library.reason() or 'not expected here'}"
    calls = counted(native, "leanbayes_forward") if native is not None else []
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    lb.bayesianize_(model, lb.SparseSubspace(density=0.05))
    before = [p.detach().clone() for p in model.parameters()]
    lb.fit(model, (torch.randn(32, 64), torch.arange(32) % 10), epochs=1, batch_size=32, progress=False)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "nothing was trained"
    expected = 2 if KERNELS_EXPECTED else 0  # a call for each layer
    assert len(calls) == expected, f"expected {expected} forward passes of the compiled kernels, counted {len(calls)}"


def counted(native: Any, name: str) -> list[str]:
    """A list that grows with every call of a function of the library."""
    original, calls = getattr(native, name), list[str]()

    def call(*arguments: Any) -> Any:
        calls.append(name)
        return original(*arguments)

    setattr(native, name, call)  # ctypes keeps its functions as attributes of the library
    return calls


if __name__ == "__main__":
    main(Path(sys.argv[1]))
