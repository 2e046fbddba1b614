"""Probabilistic U-Nets through fit, predict, save and set_length_; what they were shown, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.batches import LatentOutput
from leanbayes.errors import ConfigError, DataError, PredictionError
from leanbayes.models import unet
from leanbayes.prediction.probe import probe
from leanbayes.segmentation.code import OrderedConditionalCode
from tests.test_foreign_models import package

LATENTS = [lb.GaussianLatents(4), lb.OrderedLatents(4)]


def small(latents: Any = LATENTS[1], **options: Any) -> lb.ProbabilisticUNet:
    torch.manual_seed(0)
    return lb.probabilistic_unet(latents, (1, 16, 16), widths=(4, 8), **options)


def data(n: int = 12, annotators: int = 3, classes: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(0, classes, (n, annotators, 16, 16), generator=generator)
    return torch.randn(n, 1, 16, 16, generator=generator), masks


def fitted(model: nn.Module, *given: Any, **options: Any) -> Any:
    return lb.fit(
        model, given or data(), **{"task": "segmentation", "epochs": 2, "batch_size": 4, "progress": False, **options}
    )


@pytest.mark.parametrize(
    ("latents", "classes", "outputs"), [(LATENTS[0], 2, 2), (LATENTS[1], 2, 1), (LATENTS[1], 3, 3)]
)
def test_training_prediction_and_files(tmp_path: Path, latents: Any, classes: int, outputs: int) -> None:
    model, (x, y) = small(latents, num_classes=outputs), data(classes=classes)
    history = fitted(model, x, y, val=(x, y), epochs=1)
    assert history.last["latent_kl"] > 0
    assert "val_latent_kl" not in history.last  # validation draws from the prior
    pred = lb.predict(model, x, samples=4, keep_samples=True)
    assert pred.probs.shape == (12, classes, 16, 16)
    assert pred.samples.std(0).max() > 0
    lb.save(model, tmp_path / "a.safetensors")
    again = lb.load(tmp_path / "a.safetensors", into=small(latents, num_classes=outputs))
    torch.testing.assert_close(lb.predict(again, x, samples=4).probs, pred.probs, rtol=0, atol=0)


def test_a_call_with_labels_says_which_annotator_it_was_shown() -> None:
    model, (x, y) = small().train(), data()
    shown = model(x, targets=y)
    assert isinstance(shown, LatentOutput)
    assert shown.kl.shape == (12,)
    who = (shown.targets[:, None] == y).flatten(2).all(2)
    assert who.sum(1).tolist() == [1] * 12  # one of the annotators of that image
    assert len(who.nonzero()[:, 1].unique()) > 1  # not the same of all images
    assert model(x).shape == (12, 2, 16, 16)  # without labels: from the prior
    empty = model(x, targets=torch.zeros(12, 3, 16, 16, dtype=torch.bool))
    assert torch.isfinite(empty.kl).all()
    assert torch.isfinite(empty.outputs).all()


def test_a_run_that_is_continued_draws_the_same_annotators(tmp_path: Path) -> None:
    whole, cut = small(), small()
    fitted(whole, epochs=3)
    fitted(cut, checkpoint=tmp_path / "a", epochs=1)
    fitted(cut, checkpoint=tmp_path / "a", epochs=3, resume=True)
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_trunk_runs_once_for_all_samples() -> None:
    model, (x, _) = small().eval(), data()
    pixels: list[int] = []
    model.trunk.register_forward_hook(lambda module, args, output: pixels.append(len(output)))
    lb.predict(model, x, samples=16, task="segmentation")  # counts and tries vmap, on a datum or two
    del pixels[:]
    pred = lb.predict(model, x, samples=16, task="segmentation")
    assert pred.engine == "vmap"
    assert sum(pixels) == len(x)


def test_only_the_output_limits_how_many_images_are_computed_at_once() -> None:
    model, (x, _) = small().eval(), data()
    assert probe(model, x).largest == 2 * 16 * 16  # the head's maps, twice as many numbers, exist in pieces
    lb.bayesianize_(model, {"combine.1": lb.MeanField()})
    assert probe(model, x).largest == 4 * 16 * 16  # weights of their own are all drawn at once


def test_the_first_convolution_is_that_of_maps_and_code_side_by_side() -> None:
    model = small()
    maps, code = torch.randn(3, 4, 5, 5), torch.randn(3, 4)
    weight = torch.cat([model.of_maps.weight, model.of_code.weight[:, :, None, None]], 1)
    beside = torch.cat([maps, code[:, :, None, None].expand(-1, -1, 5, 5)], 1)
    whole = model.combine(nn.functional.conv2d(beside, weight, model.of_maps.bias))
    torch.testing.assert_close(model._logits(model.of_maps(maps), code), whole)


def test_without_gradients_maps_and_codes_are_put_together_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    maps, code = torch.randn(5, 4, 6, 6), torch.randn(5, 4)
    whole = model._logits(maps, code)
    monkeypatch.setattr("leanbayes.segmentation.network.PIECE", 2 * maps[0].numel())
    calls: list[int] = []
    model.combine.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    with torch.no_grad():
        torch.testing.assert_close(model._logits(maps, code), whole)
    assert calls == [2, 2, 1]


def test_lengths_are_a_choice_at_run_time() -> None:
    model, (x, _) = small().eval(), data()
    code = model.code
    assert isinstance(code, OrderedConditionalCode)
    probs = {}
    for length in (1, 4):
        lb.set_length_(model, length)
        probs[length] = lb.predict(model, x, samples=3, task="segmentation").probs
    with torch.no_grad():
        model.of_code.weight[:, 1:] = 0  # what lies behind the first latent is not read
    lb.set_length_(model, 4)
    torch.testing.assert_close(lb.predict(model, x, samples=3, task="segmentation").probs, probs[1])
    assert not torch.allclose(probs[1], probs[4])
    with torch.no_grad():
        code.prior_tail.bias.copy_(torch.tensor([0.0, 0.0, 9.0, 0.0]))
    assert model.lengths(x).tolist() == [3] * 12
    with pytest.raises(PredictionError, match="expected a model with OrderedLatents"):
        small(LATENTS[0]).lengths(x)


def test_images_of_other_and_odd_sizes() -> None:
    model = small().train()
    x, y = torch.randn(2, 1, 21, 13), torch.zeros(2, 2, 21, 13, dtype=torch.long)
    assert model(x, targets=y).outputs.shape == (2, 2, 21, 13)


def test_random_weights_in_the_trunk() -> None:
    model, (x, y) = small(), data()
    lb.bayesianize_(model, {"trunk.*": lb.MeanField()})
    fitted(model, x, y)
    assert lb.predict(model, x, samples=3).probs.shape == (12, 2, 16, 16)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.rand(12, 3, 16, 16), "expected integers, received torch.float32"),
        (torch.full((12, 3, 16, 16), 2), "expected 0 to 1 for 2 output"),
        (torch.zeros(12, 0, 16, 16, dtype=torch.bool), r"\(batch, annotators, 16, 16\).*received \(12, 0, 16, 16\)"),
        (torch.zeros(12, 3, 16, 15, dtype=torch.bool), r"received \(12, 3, 16, 15\)|received \(4, 3, 16, 15\)"),
        (torch.zeros(12, dtype=torch.long), r"expected shape \(4, 16, 16\), or \(batch, annotators"),
        (torch.eye(2)[torch.randint(2, (12, 16, 16))].movedim(3, 1).long(), "look one-hot, pass targets.argmax"),
    ],
    ids=["probabilities", "a third class", "no annotator", "another size", "labels of images", "one-hot"],
)
@pytest.mark.parametrize("latent", [True, False], ids=["latents", "plain"])
def test_bad_targets_are_refused_before_anything_changes(targets: Tensor, message: str, latent: bool) -> None:
    model = small() if latent else unet(widths=(4, 8))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(DataError, match=message.replace("(12, 0", "(4, 0")):
        fitted(model, data()[0], targets)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latents": lb.PointLatents(4)}, "expected lb.GaussianLatents"),
        ({"shape": (16, 16)}, r"shape: expected \(channels, height, width\)"),
        ({"trunk": nn.MaxPool2d(2)}, r"trunk: expected feature maps \(batch, channels, 16, 16\)"),
        ({"trunk": nn.Conv2d(3, 4, 1)}, "trunk: expected a module that takes a tensor of shape"),
        ({"layers": 1}, "layers: expected a whole number of at least 2"),
        ({"num_classes": 0}, "num_classes: expected a whole number of at least 1"),
        ({"norm": "layer"}, "norm: expected one of"),
        ({"widths": ()}, "widths"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "trunk": unet(None, widths=(4, 8)), "latents": LATENTS[0], "shape": (1, 16, 16), "widths": (4,), **options
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        lb.ProbabilisticUNet(given.pop("trunk"), given.pop("latents"), **given)


@pytest.mark.extra
@pytest.mark.parametrize(
    "method", [lb.Nested(groups=4, base_groups=1, input_shape=(1, 32, 32)), lb.Patch(components=2)]
)
def test_a_unet_of_monai(method: Any) -> None:
    torch.manual_seed(0)
    nets = package("monai.networks.nets")
    model = nets.UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), norm="batch")
    plan = lb.bayesianize_(model, method)
    assert plan.converted
    x = torch.randn(8, 1, 32, 32)
    y = (x > 0.5).expand(-1, 4, -1, -1) & (torch.rand(8, 4, 1, 1) < 0.7)
    history = fitted(model, x, y, epochs=6, lr=1e-2, kl_weight=0.1)
    assert history.rows[-1]["nll"] < 0.8 * history.rows[0]["nll"]
    assert lb.predict(model, x, samples=4).probs.shape == (8, 2, 32, 32)


@pytest.mark.extra
def test_monai_as_a_trunk() -> None:
    nets = package("monai.networks.nets")
    trunk = nets.UNet(spatial_dims=2, in_channels=1, out_channels=6, channels=(4, 8), strides=(2,))
    model, (x, y) = lb.ProbabilisticUNet(trunk, lb.OrderedLatents(4), shape=(1, 16, 16), widths=(4, 8)), data()
    fitted(model, x, y)
    assert lb.predict(model, x, samples=3).probs.shape == (12, 2, 16, 16)
