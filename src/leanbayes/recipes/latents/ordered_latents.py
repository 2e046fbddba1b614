"""Tables 5 to 7 of variational nested dropout: VND-AE at a quarter to all of its code, beside VAEs and other rivals.

VND-AE and nested dropout on the code are trained once and cut. VAE: trained for each length. "VAE, cut": the whole one,
its last latents set to zero; "by KL": after its latents were sorted by their average KL. The paper prints FID and
Inception scores, which need the weights of an Inception network; here images are compared in the features of a
classifier trained on the same data, so that only the order of rows can be compared with the paper's. Its
reconstruction errors (table 7) have no stated unit.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..experiment import Cell, Experiment
from ..figures.charts import lines
from .networks import EXTRACTOR, SETUPS, cells

_QUARTERS = (0.25, 0.5, 0.75, 1.0)
_PRINTED: dict[str, list[tuple[float, float, float] | None]] = {  # FID, IS, reconstruction error
    "VAE": [(175.17, 2.71, 0.947), (140.70, 3.26, 0.752), (144.35, 3.19, 0.740), (147.35, 3.10, 0.743)],
    "VND-AE": [(174.83, 2.83, 1.094), (134.95, 3.36, 0.865), (117.24, 3.40, 0.810), (114.12, 3.36, 0.805)],
    "beta-VAE (4)": [None, None, None, (215.04, 2.19, 1.286)],
    "Joint-VAE": [None, None, None, (154.57, 3.01, 0.774)],
    "SWAE": [None, None, None, (119.52, 3.00, 3.820)],
}
PAPER = {
    ("cifar10", method, at): dict(zip(("FID", "IS", "reconstruction error"), printed, strict=True))
    for method, rows in _PRINTED.items()
    for at, printed in zip(_QUARTERS, rows, strict=True)
    if printed is not None
}


def all_cells(preset: str) -> Iterator[Cell]:
    """Rows by model and part of the code."""
    return cells(SETUPS[preset], PAPER)


FIGURE = lines("One training, any code length", "part of the code", ("elbo", "mse", f"feature distance ({EXTRACTOR})"))
EXPERIMENT = Experiment("ordered-latents", all_cells, figure=FIGURE)
