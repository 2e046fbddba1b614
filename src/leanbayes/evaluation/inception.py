"""FID and Inception score, computed by torchmetrics."""

from __future__ import annotations

from torch import Tensor

from .. import checks
from ..errors import EvaluationError
from ..optional import require


def inception_scores(real: Tensor, generated: Tensor, *, batch: int = 64) -> dict[str, float]:
    """FID (Heusel et al., 2017) and Inception score (Salimans et al., 2016) of generated images in [0, 1].

    Requires torchmetrics and torch-fidelity, which downloads the weights of the Inception network:
    `pip install 'leanbayes[generation]'`. Without them, `leanbayes.evaluate_generation` measures distances in the
    features of any network.

    real, generated: (n, 3, height, width); grey images (n, 1, ...) are repeated to three channels.
    """
    for name, images in (("real", real), ("generated", generated)):
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise EvaluationError(
                f"{name}: expected images (n, 1 or 3, height, width), received {checks.short(images)}"
            )
        if not bool(((images >= 0) & (images <= 1)).all()):
            raise EvaluationError(f"{name}: expected pixels in [0, 1]")
    require("torch_fidelity", "generation", "FID and Inception score")
    distances = require("torchmetrics.image.fid", "generation", "FID and Inception score")
    scores = require("torchmetrics.image.inception", "generation", "FID and Inception score")
    fid, score = distances.FrechetInceptionDistance(normalize=True), scores.InceptionScore(normalize=True)
    for images, is_real in ((real, True), (generated, False)):
        for part in images.split(batch):
            part = part.expand(-1, 3, -1, -1)
            fid.update(part, real=is_real)
            if not is_real:
                score.update(part)
    return {"FID": float(fid.compute()), "IS": float(score.compute()[0])}
