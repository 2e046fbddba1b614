"""Autoencoders: training, use at every length, prediction, saving, extraction, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import ConfigError, ConversionError, DataError, PredictionError
from leanbayes.sampling import sites

SHAPE = (1, 8, 8)


def images() -> Tensor:
    """Digits, pixels in [0, 1]."""
    from leanbayes.data import load

    return load("digits", normalise=False).train.tensors[0]


def fresh(latents: object = None, seed: int = 0) -> lb.Autoencoder:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64), nn.Unflatten(1, SHAPE))
    return lb.Autoencoder(encoder, decoder, latents or lb.OrderedLatents(8), shape=SHAPE)


@pytest.fixture(scope="module")
def trained() -> lb.Autoencoder:
    model = fresh()
    lb.fit(model, images(), task="bernoulli", epochs=20, lr=5e-3, batch_size=64, progress=False)
    return model


def test_training_has_columns_and_falls() -> None:
    model = fresh()
    x = images()[:512]
    schedule = lb.warmup(0, 1, steps=8)
    history = lb.fit(
        model,
        x,
        val=x[:100],
        task="bernoulli",
        epochs=3,
        lr=5e-3,
        latent_weight=schedule,
        batch_size=64,
        progress=False,
    )
    assert history["loss"][-1] < history["loss"][0]
    assert history["latent_weight"] == [7 / 8, 1.0, 1.0]
    row = history.last
    assert row["loss"] == pytest.approx(row["nll"] + row["latent_kl"], rel=1e-5)  # no weight is random: kl is 0
    assert row["kl"] == 0
    assert "unscaled" not in row
    assert {"val_nll", "val_latent_kl"} <= row.keys()


def test_labels_are_ignored_and_a_seed_repeats() -> None:
    x = images()[:200]
    results = []
    for data in (x, (x, torch.zeros(200, dtype=torch.long)), (x, torch.ones(200, dtype=torch.long))):
        model = fresh()
        results.append(lb.fit(model, data, task="bernoulli", epochs=1, progress=False)["loss"])
    assert results[0] == results[1] == results[2]


def test_error_falls_with_the_length(trained: lb.Autoencoder) -> None:
    x = images()[:300]
    errors = [float((trained.reconstruct(x, k) - x).square().mean()) for k in range(1, 9)]
    assert all(later < 1.01 * earlier for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < 0.6 * float((x.mean(0) - x).square().mean())


def test_encode_decode_lengths(trained: lb.Autoencoder) -> None:
    x = images()[:20]
    code = trained.encode(x)
    assert code.shape == (20, 8)
    assert torch.equal(trained.encode(x, 3), code[:, :3])
    padded = torch.cat([code[:, :3], torch.zeros(20, 5)], 1)
    assert torch.equal(trained.decode(code[:, :3]), trained.decode(padded))
    assert torch.equal(trained.reconstruct(x, 3), trained.decode(code[:, :3]))
    lengths = trained.lengths(x)
    assert lengths.shape == (20,)
    assert int(lengths.min()) >= 1
    assert int(lengths.max()) <= 8
    likely = trained.encode(x, "likely")
    kept = torch.arange(8) < lengths.unsqueeze(1)
    assert torch.equal(likely, code * kept)
    pixels = trained.decode(code)
    assert float(pixels.min()) >= 0
    assert float(pixels.max()) <= 1


def test_set_length_and_width(trained: lb.Autoencoder) -> None:
    assert lb.widths(trained) == [k / 8 for k in range(1, 9)]
    try:
        assert lb.set_length_(trained, 3) == {"code": 3}
        assert trained.encode(images()[:2]).shape == (2, 3)
        assert lb.set_width_(trained, 0.5) == {"code": 0.5}
        assert trained.length == 4
        assert lb.set_length_(trained, None) == {}
        assert trained.length == 8
        for wrong in (0, 9, 2.0, -1, True):
            with pytest.raises(ConversionError, match="length: expected a whole number from 1 to 8"):
                lb.set_length_(trained, wrong)
        with pytest.raises(ConversionError, match="rescale"):
            lb.set_width_(trained, 0.5, rescale=True)
        with pytest.raises(ConversionError, match="depend on the input"):
            lb.importance(trained)
        assert trained.length == 8
    finally:
        lb.set_width_(trained, None)


def test_sampling_is_by_image(trained: lb.Autoencoder) -> None:
    many = trained.sample(40, seed=1)
    assert many.shape == (40, *SHAPE)
    torch.testing.assert_close(trained.sample(7, seed=1), many[:7], atol=1e-6, rtol=0)
    assert torch.equal(trained.sample(40, seed=1), many)  # bit for bit
    assert not torch.equal(trained.sample(40, seed=2), many)
    assert float((many[0] - many[1]).abs().max()) > 0.05
    assert not torch.equal(trained.sample(40, 2, seed=1), many)


def test_predict_draws_codes_like_any_site(trained: lb.Autoencoder) -> None:
    x = images()[:12]
    assert [type(site).__name__ for site in sites(trained).values()] == ["LatentNoise", "LatentNoise"]
    once = lb.predict(trained, x, samples=8, seed=3, keep_samples=True)
    assert once.samples.shape[0] == 8
    assert float(once.epistemic.mean()) > 1e-4
    assert torch.equal(lb.predict(trained, x, samples=8, seed=3).mean, once.mean)
    for chunk in (5, 64):
        again = lb.predict(trained, x, samples=8, seed=3, chunk=chunk)
        torch.testing.assert_close(again.mean, once.mean, atol=1e-5, rtol=0)
    alone = lb.predict(trained, x[4:5], samples=8, seed=3)
    torch.testing.assert_close(alone.mean, once.mean[4:5], atol=1e-5, rtol=0)
    loop = lb.predict(trained, x, samples=8, seed=3, strategy="loop")
    torch.testing.assert_close(loop.mean, once.mean, atol=1e-5, rtol=0)
    assert not torch.equal(lb.predict(trained, x, samples=8, seed=4).mean, once.mean)
    means = lb.predict(trained, x, mean_only=True)
    torch.testing.assert_close(means.mean, trained.reconstruct(x), atol=1e-6, rtol=0)


def test_save_load_and_generate_repeat_bit_for_bit(trained: lb.Autoencoder, tmp_path: Path) -> None:
    x = images()[:6]
    lb.set_length_(trained, 5)
    try:
        path = lb.save(trained, tmp_path / "model.safetensors")
        other = lb.load(path, into=fresh(seed=9))
        assert other.length == 5
        assert torch.equal(other.sample(4, seed=2), trained.sample(4, seed=2))
        assert torch.equal(lb.predict(other, x, samples=4).mean, lb.predict(trained, x, samples=4).mean)
        assert torch.equal(other.encode(x), trained.encode(x))
    finally:
        lb.set_length_(trained, None)


def test_a_learned_scale_is_saved_by_name(tmp_path: Path) -> None:
    model = fresh()
    lb.fit(model, images()[:256], task="discretized-logistic", epochs=1, lr=1e-2, progress=False)
    other = lb.load(lb.save(model, tmp_path / "m.safetensors"), into=fresh(seed=1))
    likelihood = other.likelihood()
    assert likelihood.task == "discretized-logistic"
    assert likelihood.scale != 0.1


def test_extract_cuts_the_decoder(trained: lb.Autoencoder) -> None:
    x = images()[:10]
    small = lb.extract(trained, 3 / 8)
    assert small.decoder[0].in_features == 3
    assert trained.decoder[0].in_features == 8
    torch.testing.assert_close(small.encode(x), trained.encode(x, 3))
    torch.testing.assert_close(small.reconstruct(x), trained.reconstruct(x, 3))
    assert sites(small) == {}
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in trained.parameters())
    assert lb.predict(small, x).mean.shape == x.shape
    assert lb.extract(trained).decoder[0].in_features == 8


def test_extract_says_why_it_cannot_cut() -> None:
    class Odd(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return (z @ z.T).sum(1, keepdim=True).expand(-1, 4)

    model = lb.Autoencoder(nn.Flatten(), Odd(), lb.OrderedLatents(6), shape=(4,))
    with pytest.raises(ConversionError, match="inputs of the decoder cannot be cut"):
        lb.extract(model, 0.5)


@pytest.mark.parametrize(
    "latents",
    [lb.GaussianLatents(8), lb.JointLatents(5, (3,)), lb.PointLatents(8), lb.OrderedLatents(8, tails="uniform")],
    ids=lambda latents: type(latents).__name__,
)
def test_rivals_train_sample_and_reload(latents: object, tmp_path: Path) -> None:
    model, x = fresh(latents), images()[:256]
    history = lb.fit(model, x, task="bernoulli", epochs=4, lr=5e-3, batch_size=64, progress=False)
    assert history["nll"][-1] < history["nll"][0]
    assert model.sample(3).shape == (3, *SHAPE)
    other = lb.load(lb.save(model, tmp_path / "m.safetensors"), into=fresh(latents, seed=4))
    assert torch.equal(other.reconstruct(x[:5]), model.reconstruct(x[:5]))


def test_bayesian_decoders_work_too() -> None:
    model = fresh()
    lb.bayesianize_(model, {"decoder.0": lb.MeanField()})
    history = lb.fit(model, images()[:128], task="bernoulli", epochs=1, progress=False)
    assert history.last["kl"] > 0
    assert history.last["latent_kl"] > 0
    assert model.sample(2).shape == (2, *SHAPE)


def test_wrong_encoders_and_decoders_are_refused() -> None:
    ordered = lb.OrderedLatents(8)
    decoder = nn.Sequential(nn.Linear(8, 64), nn.Unflatten(1, SHAPE))
    with pytest.raises(ConfigError, match=r"decoder: expected a module that takes a tensor of shape \(batch, 9\)"):
        lb.Autoencoder(nn.Flatten(), decoder, lb.OrderedLatents(9), shape=SHAPE)
    with pytest.raises(ConfigError, match=r"decoder: expected outputs of shape \(1, 8, 8\) from codes of 8 numbers"):
        lb.Autoencoder(nn.Flatten(), nn.Linear(8, 64), ordered, shape=SHAPE)
    with pytest.raises(
        ConfigError, match=r"encoder: expected a module that takes a tensor of shape \(batch, 1, 8, 8\)"
    ):
        lb.Autoencoder(nn.Linear(3, 3), decoder, ordered, shape=SHAPE)
    with pytest.raises(ConfigError, match="encoder: expected features for each of 2"):
        lb.Autoencoder(nn.Flatten(0, 2), decoder, ordered, shape=SHAPE)
    with pytest.raises(ConfigError, match="latents: expected one of GaussianLatents"):
        lb.Autoencoder(nn.Flatten(), decoder, 8, shape=SHAPE)
    for wrong in (
        {"size": 0},
        {"size": 4, "floor": 1.5},
        {"size": 4, "prior_keep": 1.0},
        {"size": 4, "prior_keep": 0.0},
        {"size": 4, "prior_keep": "high"},
        {"size": 4, "temperature": 0.0},
    ):
        with pytest.raises(ConfigError, match="expected"):
            lb.OrderedLatents(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="latents: expected latents such as"):
        lb.image_autoencoder(8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="multiple of 4"):
        lb.image_autoencoder(ordered, (1, 9, 9))
    with pytest.raises(ConfigError, match="multiple of 32"):
        lb.image_autoencoder(ordered, (3, 28, 28), "paper")


def test_wrong_inputs_are_refused(trained: lb.Autoencoder) -> None:
    x = images()[:4]
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    for wrong in (0, 9, 1.5, True, "all"):
        for verb in (trained.encode, trained.reconstruct):
            with pytest.raises(PredictionError, match="length: expected"):
                verb(x, wrong)
        with pytest.raises(PredictionError, match="length: expected"):
            trained.sample(2, wrong)
    with pytest.raises(DataError, match=r"expected inputs of shape \(n, \*\(1, 8, 8\)\), received \(4, 1, 7, 8\)"):
        trained.encode(x[:, :, :7])
    with pytest.raises(DataError, match="expected finite numbers, received nan"):
        trained.encode(torch.full_like(x, torch.nan))
    with pytest.raises(DataError, match=r"expected floats, received torch\.uint8; pass x\.float\(\), or x / 255"):
        trained.encode((255 * x).byte())
    with pytest.raises(DataError, match=r"code: expected shape \(n, 1 to 8\)"):
        trained.decode(torch.zeros(2, 9))
    with pytest.raises(DataError, match="code: expected finite"):
        trained.decode(torch.full((2, 8), torch.inf))
    with pytest.raises(DataError, match=r"pixels in \[0, 1\]"):
        lb.fit(trained, 255 * x, task="bernoulli", epochs=1, progress=False)
    with pytest.raises(DataError, match="finite"):
        lb.fit(trained, x * torch.nan, task="bernoulli", epochs=1, progress=False)
    with pytest.raises(PredictionError, match=r"not trained by leanbayes\.fit"):
        fresh().sample(2)
    with pytest.raises(PredictionError, match="OrderedLatents"):
        fresh(lb.GaussianLatents(8)).lengths(x)
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


def test_the_paper_backbone_has_five_convolutions() -> None:
    model = lb.image_autoencoder(lb.OrderedLatents(16), (3, 64, 64), "paper")
    assert sum(isinstance(m, nn.Conv2d) for m in model.encoder.modules()) == 5
    assert model(torch.rand(2, 3, 64, 64)).outputs.shape == (2, 3, 64, 64)
