"""The KL of latent variables in the loss, and models whose posterior sees the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.batches import LatentOutput, SeesTargets, call
from leanbayes.errors import ConfigError, TrainingError


class Latent(nn.Module):
    """A model that states the KL of each datum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> LatentOutput:
        return LatentOutput(self.linear(x), self.linear(x).square().sum(1))


def test_the_kl_of_a_datum_is_averaged_and_not_divided_by_the_number_of_data() -> None:
    torch.manual_seed(0)
    model, x, y = Latent(), torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    kl = model(x).kl.mean()
    for num_data in (8, 80_000):
        terms = lb.ELBO("classification", num_data, latent_weight=0.3)(model, model(x), y)
        torch.testing.assert_close(terms.loss, terms.nll + 0.3 * kl)
        torch.testing.assert_close(terms.latent_kl, kl)
    plain = lb.ELBO("classification", 8)(model.linear, model.linear(x), y)
    assert plain.latent_kl == 0.0
    assert plain.unscaled == 0.0


def test_history_has_a_column_for_every_term() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 3), torch.zeros(64, dtype=torch.long)
    row = lb.fit(Latent(), (x, y), epochs=1, latent_weight=0.5, progress=False, val=(x, y)).last
    assert row["loss"] == pytest.approx(row["nll"] + 0.5 * row["latent_kl"], rel=1e-5)
    assert row["latent_weight"] == 0.5
    assert "unscaled" not in row
    assert "val_latent_kl" in row
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    lb.bayesianize_(model, lb.Nested(groups=8))
    row = lb.fit(model, (x, y), epochs=1, batch_size=16, progress=False).last  # tails start at their prior
    assert row["unscaled"] > 0
    assert "latent_kl" not in row
    row = lb.fit(nn.Linear(3, 2), (x, y), epochs=1, progress=False).last
    assert not {"unscaled", "latent_kl", "latent_weight"} & row.keys()


def test_resuming_with_another_weight_is_refused(tmp_path: Any) -> None:
    x, y = torch.randn(64, 3), torch.zeros(64, dtype=torch.long)
    options = {"epochs": 1, "progress": False, "checkpoint": tmp_path / "run.ckpt"}
    lb.fit(Latent(), (x, y), latent_weight=0.5, **options)
    with pytest.raises(TrainingError, match="latent_weight"):
        lb.fit(Latent(), (x, y), latent_weight=0.7, resume=True, **options)
    with pytest.raises(ConfigError, match="latent_weight: expected a finite number of at least 0"):
        lb.fit(Latent(), (x, y), latent_weight=-1.0, epochs=1)


def test_a_kl_that_is_not_finite_is_named() -> None:
    class Broken(Latent):
        def forward(self, x: Tensor) -> LatentOutput:
            out = super().forward(x)
            return LatentOutput(out.outputs, out.kl * torch.inf)

    with pytest.raises(TrainingError, match="the KL of the latents is"):
        lb.fit(Broken(), (torch.randn(8, 3), torch.zeros(8, dtype=torch.long)), epochs=1, progress=False)


class Peeking(SeesTargets):
    """A model that notes what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(3, 2), []

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        self.seen.append((self.training, targets is not None))
        return self.linear(x)


def test_labels_reach_a_model_in_training_mode_only() -> None:
    model, x, y = Peeking(), torch.randn(40, 3), torch.randint(0, 2, (40,))
    lb.fit(model, (x, y), val=(x, y), epochs=2, batch_size=20, progress=False)
    assert set(model.seen) == {(True, True), (False, False)}
    model.seen.clear()
    lb.predict(model, x)
    lb.evaluate(model, (x, y), progress=False)
    assert set(model.seen) == {(False, False)}
    call(model.eval(), x, y)
    assert model.seen[-1] == (False, False)
