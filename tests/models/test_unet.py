"""The U-Net: hand counts, odd sizes, what is cut out of it, and the methods of the library on it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import leanbayes as lb
from leanbayes import models
from leanbayes.errors import ConfigError, DataError
from leanbayes.models import unet


def by_hand(widths: tuple[int, ...], inputs: int, classes: int, norm: bool) -> int:
    blocks = [(a, b) for a, b in pairwise((inputs, *widths))] + [(a + b, a) for a, b in pairwise(widths)]
    return sum(9 * (a * b + b * b) + 2 * b * (2 if norm else 1) for a, b in blocks) + (widths[0] + 1) * classes


@pytest.mark.parametrize("norm", ["batch", "instance", "none"])
def test_parameters_by_hand(norm: Any) -> None:
    assert sum(p.numel() for p in models.build("unet").parameters()) == by_hand((32, 64, 128, 192), 1, 2, True)
    model = unet(5, in_channels=3, widths=(4, 6, 8), norm=norm)
    assert sum(p.numel() for p in model.parameters()) == by_hand((4, 6, 8), 3, 5, norm != "none")


@pytest.mark.parametrize("shape", [(16, 16), (17, 31), (4, 4), (5, 4)])
def test_outputs_have_the_size_of_the_images(shape: tuple[int, int]) -> None:
    assert unet(3, widths=(4, 4, 4))(torch.randn(2, 1, *shape)).shape == (2, 3, *shape)
    assert unet(None, widths=(4, 4, 4))(torch.randn(2, 1, *shape)).shape == (2, 4, *shape)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(DataError, match=r"at least 4x4 pixels for 3 resolutions, received shape \(2, 1, 3, 9\)"):
        unet(widths=(4, 4, 4))(torch.randn(2, 1, 3, 9))
    with pytest.raises(ConfigError, match=r"unet\.widths"):
        unet(widths=())
    with pytest.raises(ConfigError, match=r"unet\.norm: expected one of"):
        unet(norm="group")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"unet\.num_classes"):
        unet(0)


@pytest.mark.parametrize(("norm", "trained"), [("batch", False), ("batch", True), ("instance", False), ("none", False)])
def test_what_is_extracted_is_what_was_masked(norm: Any, trained: bool) -> None:
    torch.manual_seed(0)
    model, x = unet(widths=(8, 12, 16), norm=norm), torch.randn(3, 1, 18, 15)
    if trained:
        model(x)  # BatchNorm has seen a batch: channels go by importance
    plan = lb.bayesianize_(model, lb.Nested(groups=8, base_groups=2))
    assert sum("orders" in (entry.why or "") for entry in plan.entries) == 10  # all but the last layer
    model.train()
    with torch.no_grad():
        model(x)  # statistics that differ from channel to channel
    model.eval()
    before = None
    for width in (0.25, 0.5, 0.8, 1.0):
        lb.set_width_(model, width)
        with lb.using(mean_only=True), torch.no_grad():
            masked = model(x)
        small = lb.extract(model, width=width)
        with torch.no_grad():
            torch.testing.assert_close(small(x), masked, rtol=1e-4, atol=1e-6)
        size = sum(p.numel() for p in small.parameters())
        assert before is None or size > before
        before = size


@pytest.mark.parametrize(
    "method",
    [lb.Nested(groups=4, base_groups=1), lb.Dropout(0.2), lb.Ensemble(members=2, init="fresh"), lb.Patch(components=2)],
    ids=lambda method: type(method).__name__,
)
def test_methods_train_on_several_annotators(method: Any) -> None:
    torch.manual_seed(0)
    model = unet(widths=(4, 8))
    lb.bayesianize_(model, method)
    x = torch.randn(12, 1, 12, 12)
    y = (x > 0.5).expand(-1, 3, -1, -1) & (torch.rand(12, 3, 1, 1) < 0.7)
    history = lb.fit(
        model, (x, y), val=(x, y), task="segmentation", epochs=8, batch_size=6, lr=1e-2, kl_weight=0.1, progress=False
    )
    assert history.last["nll"] < 0.85 * history.rows[0]["nll"]
    assert {"val_nll", "val_accuracy"} <= history.last.keys()
    pred = lb.predict(model, x, samples=4, keep_samples=True)
    assert pred.samples.std(0).max() > 0
