"""Table 8 of variational nested dropout: energy distances between samples of segmentations and the masks of experts.

"GED" is the estimate of the papers, which falls with the number of samples for any model; "GED, unbiased" is its
U-statistic at 16 samples (all pairs of an ensemble's members), with an interval over test patients. The printed column
of VND-PUNet comes from code that compares four images instead of four annotators, and those of P-UNet, D-UNet and
E-UNet are other authors', on another split: only the order of rows can be compared. The cpu preset has a quarter of the
channels, 200 patients with up to 10 slices each, and five epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..experiment import Cell, Experiment
from ..figures.charts import lines
from .networks import COUNTS, SegmentationTraining, Setup, cells

_PRINTED = {  # for 1, 4, 8 and 16 samples
    "19%-BN3": (0.51, 0.39, 0.34, 0.36),
    "46%-BN3": (0.31, 0.24, 0.22, 0.21),
    "80%-BN3": (0.29, 0.23, 0.21, 0.21),
    "100%-BN3": (0.27, 0.23, 0.22, 0.21),
    "P-UNet": (0.69, 0.40, 0.32, 0.28),
    "D-UNet": (1.31, 0.62, 0.53, 0.46),
    "E-UNet": (0.83, 0.55, 0.49, 0.50),
    "33%-VND-PUNet": (0.14, 0.12, 0.07, 0.05),
    "100%-VND-PUNet": (0.12, 0.10, 0.06, 0.05),
}
PAPER = {name: dict(zip(COUNTS, values, strict=True)) for name, values in _PRINTED.items()}

SETUPS = {
    "smoke": Setup(
        SegmentationTraining("blobs", "unet", epochs=1, batch_size=16, widths=(4, 8), patients={"train": 8, "test": 4}),
        groups=4,
        base_groups=1,
        widths=(0.25, 0.5, 0.75, 1.0),
        members=2,
        clean=16,
        replicates=20,
        seeds=1,
    ),
    "cpu": Setup(
        SegmentationTraining(
            "lidc",
            "unet",
            epochs=5,
            batch_size=8,
            lr=5e-3,
            widths=(8, 16, 32, 48),
            patients={"train": 200, "test": 60},
            slices={"train": 10, "test": 5},
        )
    ),
    "paper": Setup(SegmentationTraining("lidc", "unet", epochs=240, lr=1e-4, batch_size=32), seeds=3),
}


def all_cells(preset: str) -> Iterator[Cell]:
    """Rows by model and number of samples."""
    return cells(SETUPS[preset], PAPER)


FIGURE = lines("Samples beside the masks of experts", "samples", ("GED",))
EXPERIMENT = Experiment("lung-segmentation", all_cells, figure=FIGURE)
