"""The hierarchical VAE: what its KL is, cutting its depth, drawing from it."""

from __future__ import annotations

import math

import pytest
import torch

import leanbayes as lb
from leanbayes.errors import ConfigError, ConversionError, DataError, PredictionError
from leanbayes.latents.hierarchy import HierarchicalVAE
from leanbayes.sampling import using


@pytest.fixture
def model() -> HierarchicalVAE:
    torch.manual_seed(0)
    made = HierarchicalVAE((1, 8, 8), blocks=(2, 2), channels=4, latents=1, prior_keep=0.7)
    with torch.no_grad():
        made.depth.raw.copy_(torch.tensor([0.3, -0.2, 0.8, 0.1]))
    return made.eval()


def test_the_kl_averages_over_depths(model: HierarchicalVAE) -> None:
    """E[sum_l z_l kappa_l] = sum_j beta_j (kappas of a network of depth j): block l is kept after all before it."""
    x = torch.rand(1, 1, 8, 8)
    log_beta = model.depth.tails().detach()
    torch.manual_seed(1)
    rows = x.expand(4000, 1, 8, 8)
    with torch.no_grad():
        drawn = model(rows).kl
        expected = (log_beta.exp() * (log_beta - model.depth.log_prior)).sum()
        for depth in range(1, 5):
            lb.set_length_(model, depth)
            expected = expected + log_beta.exp()[depth - 1] * model(rows).kl.mean()
    assert float(drawn.mean()) == pytest.approx(float(expected), abs=6 * float(drawn.std()) / math.sqrt(4000))


def test_cutting_is_masking(model: HierarchicalVAE) -> None:
    x = torch.rand(5, 1, 8, 8)
    for depth in (1, 3):
        lb.set_length_(model, depth)
        with torch.no_grad(), using(mean_only=True):
            cut = model(x)
        ran: list[int] = []
        handles = [b.register_forward_hook(lambda *a, i=i, r=ran: r.append(i)) for i, b in enumerate(model.blocks)]
        model(x)
        for handle in handles:
            handle.remove()
        assert ran == list(range(depth))  # the others are not computed
        model.depth.width = 0
        with torch.no_grad(), using(mean_only=True):
            for block in model.blocks[depth:]:
                for part in (block.out[-1].weight, block.out[-1].bias):
                    part.mul_(0)
            masked = model(x)
        torch.testing.assert_close(cut.outputs, masked.outputs)


def test_depth_is_selected_and_listed(model: HierarchicalVAE) -> None:
    assert model.likely_depth() == 3
    assert lb.likely_width(model) == {"depth": 0.75}
    assert lb.widths(model) == [0.25, 0.5, 0.75, 1.0]
    lb.set_width_(model, lb.likely_width(model))
    assert model.depth.width == 3
    with pytest.raises(ConversionError, match="length: expected a whole number from 1 to 4"):
        lb.set_length_(model, 5)


def test_training_moves_the_tails_and_a_seed_repeats(tmp_path) -> None:
    torch.manual_seed(0)
    model = HierarchicalVAE((1, 8, 8), blocks=(2, 1), channels=4, latents=1)
    x = torch.rand(64, 1, 8, 8).round()
    history = lb.fit(model, x, task="bernoulli", epochs=2, lr=1e-2, batch_size=16, progress=False)
    assert history["loss"][-1] < history["loss"][0]
    assert float(model.depth.raw.detach().abs().sum()) > 0
    assert torch.equal(model.sample(3, seed=1), model.sample(3, seed=1))
    torch.testing.assert_close(model.sample(3, seed=1)[:2], model.sample(2, seed=1))
    other = lb.load(
        lb.save(model, tmp_path / "m.safetensors"),
        into=HierarchicalVAE((1, 8, 8), blocks=(2, 1), channels=4, latents=1),
    )
    assert torch.equal(other.sample(3, 2, seed=1), model.sample(3, 2, seed=1))
    assert torch.equal(other.reconstruct(x, 1), model.reconstruct(x, 1))
    assert torch.equal(lb.predict(other, x[:4], samples=3).mean, lb.predict(model, x[:4], samples=3).mean)


def test_what_does_not_fit_is_refused(model: HierarchicalVAE) -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        HierarchicalVAE((1, 28, 28), blocks=(1, 1, 1))
    with pytest.raises(DataError, match="expected images of shape"):
        model(torch.rand(2, 1, 8, 7))
    for wrong in (0, 5, 1.5):
        with pytest.raises(PredictionError, match="depth: expected a whole number"):
            model.sample(2, wrong, task="bernoulli")
    with pytest.raises(PredictionError, match=r"not trained by leanbayes\.fit"):
        model.sample(2)
