"""Generative metrics against independent implementations; bounds of latent models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import load
from leanbayes.errors import EvaluationError, MissingExtraError
from leanbayes.evaluation.generation import at_length, bounds
from leanbayes.evaluation.inception import inception_scores
from leanbayes.evaluation.metrics.generative import frechet_distance, manifold_metrics


def test_frechet_distance_is_that_of_torchmetrics() -> None:
    fid = pytest.importorskip("torchmetrics.image.fid")
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(48, 6))
    extractor.num_features = 6  # type: ignore[assignment]
    real, made = torch.rand(200, 3, 4, 4), torch.rand(150, 3, 4, 4) ** 2
    metric = fid.FrechetInceptionDistance(feature=extractor, normalize=False, input_img_size=(3, 4, 4))
    metric.set_dtype(torch.float64)
    extractor.double()
    metric.update(real.double(), real=True)
    metric.update(made.double(), real=False)
    ours = frechet_distance(extractor(real.double()).detach(), extractor(made.double()).detach())
    assert ours == pytest.approx(float(metric.compute()), rel=1e-4)


def test_manifold_metrics_by_nearest_neighbours_of_scikit_learn() -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    generator = np.random.default_rng(0)
    real, made = generator.normal(size=(120, 5)), 0.8 * generator.normal(size=(90, 5)) + 0.5
    k = 4

    def radii(points: np.ndarray) -> np.ndarray:
        return neighbors.NearestNeighbors(n_neighbors=k + 1).fit(points).kneighbors(points)[0][:, -1]

    of_real, of_made = radii(real), radii(made)
    distance = np.linalg.norm(real[:, None] - made[None], axis=-1)
    expected = {
        "precision": np.mean([np.any(distance[:, j] < of_real) for j in range(90)]),
        "recall": np.mean([np.any(distance[i] < of_made) for i in range(120)]),
        "density": sum(distance[i, j] < of_real[i] for i in range(120) for j in range(90)) / (k * 90),
        "coverage": np.mean([distance[i].min() < of_real[i] for i in range(120)]),
    }
    found = manifold_metrics(torch.from_numpy(real), torch.from_numpy(made), k)
    assert found == pytest.approx(expected)


def test_wrong_features_are_refused() -> None:
    good = torch.randn(10, 3)
    with pytest.raises(EvaluationError, match="n of at least 6"):
        manifold_metrics(good, good[:5])
    with pytest.raises(EvaluationError, match="as many features"):
        frechet_distance(good, good[:, :2])
    with pytest.raises(EvaluationError, match="finite"):
        frechet_distance(good, good * torch.nan)


@pytest.fixture(scope="module")
def model() -> lb.Autoencoder:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8)))
    made = lb.Autoencoder(encoder, decoder, lb.OrderedLatents(8), shape=(1, 8, 8))
    images = load("digits", normalise=False).train.tensors[0]
    lb.fit(made, images, task="bernoulli", epochs=8, lr=5e-3, batch_size=64, progress=False)
    return made


def test_the_importance_weighted_bound_is_above_the_elbo(model: lb.Autoencoder) -> None:
    x = load("digits", normalise=False).test.tensors[0]
    for width in (0, 2, 8):  # 0: lengths are drawn too, and pay for it
        with at_length(model, width):
            found = bounds(model, model.likelihood(), x, samples=8, importance=32)
        assert found["bound"] > found["elbo"] - found["bound_error"]
        assert found["bound"] - found["elbo"] > 0.05


def test_one_importance_sample_is_the_elbo(model: lb.Autoencoder) -> None:
    x = load("digits", normalise=False).test.tensors[0]
    x = x.repeat(4, 1, 1, 1)
    found = bounds(model, model.likelihood(), x, samples=4, importance=1)
    spread = 6 / np.sqrt(len(x))  # of log w around its mean, in nats
    assert found["bound"] == pytest.approx(found["elbo"], abs=4 * spread)


def test_rows_by_length(model: lb.Autoencoder) -> None:
    data = load("digits", normalise=False).test
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    result = lb.evaluate_generation(
        model, data, lengths=(2, 8), generated=50, extractor=extractor, extractor_name="random", importance=2
    )
    assert [row["length"] for row in result.rows] == [2, 8]
    assert result.at(8)["mse"] < result.at(2)["mse"]
    assert result.at(8)["elbo"] > result.at(2)["elbo"]
    assert result.at(2)["bits"] < result.at(8)["bits"]
    assert result.rate_distortion() == [(row["bits"], row["mse"]) for row in result.rows]
    assert "feature distance (random)" in result.rows[0]
    assert "FID" not in str(result)
    again = lb.evaluate_generation(
        model, data, lengths=(2, 8), generated=50, extractor=extractor, extractor_name="random", importance=2
    )
    assert again == result
    assert model.length == 8
    assert result.to_dict()["settings"]["extractor"] == "random"
    with pytest.raises(EvaluationError, match="expected one of 2, 8"):
        result.at(3)


def test_wrong_arguments_are_refused(model: lb.Autoencoder) -> None:
    x = torch.rand(10, 1, 8, 8)
    with pytest.raises(lb.LeanBayesError, match=r"lengths\[0\]: expected a whole number from 1 to 8, received 0"):
        lb.evaluate_generation(model, x, lengths=(0,))
    with pytest.raises(EvaluationError, match="both or neither"):
        lb.evaluate_generation(model, x, generated=10)
    with pytest.raises(EvaluationError, match=r"an lb\.Autoencoder"):
        lb.evaluate_generation(nn.Linear(2, 2), x)
    with pytest.raises(lb.LeanBayesError, match="finite"):
        lb.evaluate_generation(model, x * torch.nan)
    with pytest.raises(lb.LeanBayesError, match=r"expected inputs of shape"):
        lb.evaluate_generation(model, [(x,), (x[..., :7],)], task="bernoulli")
    for wrong in ({"k": 0}, {"extractor_name": 3}, {"extractor": "inception", "generated": 10}):
        with pytest.raises(EvaluationError, match=f"{next(iter(wrong))}: expected"):
            lb.evaluate_generation(model, x, task="bernoulli", **wrong)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"pip install 'leanbayes\[generation\]'"):
        inception_scores(x, x)
