"""Local noise: the two paths draw different numbers, of one distribution."""

from __future__ import annotations

import warnings

import torch
from scipy.stats import ks_2samp
from torch import Tensor

import leanbayes as lb
from leanbayes.layers.sparse import dense_path

from .compare import run, sparse
from .program import Program

DRAWS = 150
LEVEL = 1e-8
"""Of a test; some thousand of them must not give a false alarm."""


def difference(program: Program) -> str | None:
    """What of the first call has another distribution on the compiled path than on the dense path; None if nothing."""
    ours = _draws(program)
    with dense_path():
        theirs = _draws(program)
    if ours is None or theirs is None:
        return None  # an error, which the comparison at the means has judged
    wrong = [name for name in theirs if name in ours and _differ(ours[name], theirs[name])]
    return f"distribution of {wrong[0].split()[0]} differs: {', '.join(wrong[:6])}" if wrong else None


def _draws(program: Program) -> dict[str, Tensor] | None:
    """A random projection of everything recorded, (DRAWS,) each; None where it raises."""
    net = sparse(program)
    start = {name: t.clone() for name, t in net.state_dict().items()}
    program.hook(net)
    found: dict[str, list[float]] = {}
    for draw in range(DRAWS):
        net.load_state_dict(start)
        torch.manual_seed(draw)
        with lb.using(estimator="local"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = run(net, program, 0)
        if "error" in record:
            return None
        for name, value in record.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel()))
                found.setdefault(name, []).append(float((value * weights).sum()))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def _differ(mine: Tensor, other: Tensor) -> bool:
    if not (mine.isfinite().all() and other.isfinite().all()):
        return False
    scale = float(other.abs().max())
    if float(other.std()) < 1e-3 * scale:  # hardly random: rounding would decide a test of the distribution
        return float((mine.mean() - other.mean()).abs()) > 1e-2 * scale
    mine, other = ((values / (1e-4 * scale)).round() for values in (mine, other))  # equal numbers, rounded differently
    return float(ks_2samp(mine.numpy(), other.numpy(), method="asymp").pvalue) < LEVEL
