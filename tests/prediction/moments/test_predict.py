"""predict(..., estimator="moments") on whole models: exactness, fallbacks, refusals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.errors import LeanBayesWarning, PredictionError
from leanbayes.kernels import gaussian
from leanbayes.prediction.moments import Moments, check_moments, rule
from leanbayes.prediction.moments.rules import FUNCTIONS


def network(*layers: nn.Module, method: object = None, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(*layers)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    lb.bayesianize_(model, method or lb.MeanField(std=0.1))
    return model


def by_moments(model: nn.Module, x: Tensor, task: object = "classification", **options: object) -> lb.Predictive:
    return lb.predict(model, x, task=task, estimator="moments", **options)  # type: ignore[arg-type]


def test_one_layer_is_exact() -> None:
    model = network(nn.Linear(6, 2))
    x = torch.randn(5, 6)
    q, b = model[0].posterior("weight"), model[0].posterior("bias")
    pred = by_moments(model, x, "regression")
    assert torch.allclose(pred.mean, F.linear(x, q.mean, b.mean), atol=1e-5)
    assert torch.allclose(pred.epistemic, F.linear(x.square(), q.variance, b.variance), rtol=1e-4)
    assert pred.engine == "moments"
    mean, variance = pred.mean, pred.variance
    gaussian = torch.distributions.Normal(mean, variance.sqrt()).log_prob(mean + 1).sum(1)
    assert torch.allclose(pred.log_prob(mean + 1), gaussian, atol=1e-4)


@pytest.mark.parametrize(
    "method",
    [
        lb.MeanField(std=0.1),
        lb.SparseSubspace(density=0.3, std=0.1),
        lb.VariationalDropout(log_alpha=-2.0),
        lb.Variance(),
    ],
    ids=lambda method: type(method).__name__,
)
def test_two_layers_agree_with_samples(method: object) -> None:
    """Exact but for the rectifier's output not being Gaussian, which two moments do not see: 4,000 samples."""
    model = network(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 3), method=method)
    x = torch.randn(6, 8)
    said, drawn = by_moments(model, x, "regression"), lb.predict(model, x, 4000, task="regression", chunk=10**6)
    error = (said.mean - drawn.mean).abs() / drawn.epistemic.sqrt()
    assert float(error.max()) < 5 / 4000**0.5
    assert float((said.epistemic / drawn.epistemic).log().abs().max()) < 0.15


def test_probabilities_and_mutual_information() -> None:
    model = network(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 4))
    x = torch.randn(20, 8)
    said, drawn = by_moments(model, x), lb.predict(model, x, 3000, task="classification")
    assert float((said.probs - drawn.probs).abs().max()) < 0.02
    assert torch.allclose(said.mutual_information, drawn.mutual_information, atol=0.02)
    assert torch.equal(by_moments(model, x).probs, said.probs)
    parts = torch.cat([by_moments(model, x, chunk=7).probs])
    assert torch.allclose(parts, said.probs, atol=1e-5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 6)
    assert torch.allclose(by_moments(model, loader).probs, said.probs, atol=1e-5)


def test_dropout_by_moments() -> None:
    model = network(nn.Linear(8, 60), nn.ReLU(), nn.Linear(60, 3), method=lb.Dropout(0.3))
    x = torch.randn(5, 8)
    said, drawn = by_moments(model, x, "regression"), lb.predict(model, x, 4000, task="regression", chunk=10**6)
    assert said.engine == "moments"
    assert float(((said.mean - drawn.mean).abs() / drawn.epistemic.sqrt()).max()) < 5 / 4000**0.5
    assert float((said.epistemic / drawn.epistemic).log().abs().max()) < 0.15


class Softmaxed(nn.Module):
    """A function without a rule in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.softmax(self.first(x), 1))


def test_a_function_without_a_rule_is_sampled_from_there_on() -> None:
    torch.manual_seed(0)
    model = Softmaxed()
    lb.bayesianize_(model, lb.MeanField(std=0.3))
    x = torch.randn(4, 6)
    with pytest.warns(LeanBayesWarning, match="softmax"):
        said = by_moments(model, x, "regression", samples=1000)
    drawn = lb.predict(model, x, 1000, task="regression")
    assert said.engine == "moments, then samples"
    assert said.samples.shape == (1000, 4, 3)
    assert float(((said.mean - drawn.mean).abs() / drawn.epistemic.sqrt()).max()) < 7 / 1000**0.5
    assert float((said.epistemic / drawn.epistemic).log().abs().max()) < 0.3
    assert "forward" not in vars(model.first)


def test_a_layer_without_a_rule_is_named() -> None:
    model = network(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), method={"0": lb.MeanField(), "2": lb.Patch(2)})
    x = torch.randn(4, 6)
    with pytest.warns(LeanBayesWarning, match=r"^2 \("):
        said = by_moments(model, x, samples=64)
    drawn = lb.predict(model, x, 64, task="classification")
    assert torch.allclose(said.probs, drawn.probs, atol=0.1)


class Asks(nn.Module):
    """Control flow that looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if float(y.max()) > 1e9 else 2 * y


@pytest.mark.parametrize("method", [lb.MeanField(), lb.Ensemble(members=2)], ids=["asks for numbers", "ensemble"])
def test_models_that_cannot_be_carried_are_sampled(method: object) -> None:
    torch.manual_seed(0)
    model = Asks() if isinstance(method, lb.MeanField) else nn.Sequential(nn.Linear(4, 3))
    lb.bayesianize_(model, method)  # type: ignore[arg-type]
    x = torch.randn(4, 4)
    with pytest.warns(LeanBayesWarning, match="samples are drawn"):
        said = by_moments(model, x)
    assert torch.equal(said.probs, lb.predict(model, x, task="classification").probs)


def test_hooks_see_and_change_tensors() -> None:
    model = network(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    seen: list[object] = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    model[1].register_forward_hook(lambda module, args, output: 2 * output)
    x = torch.randn(3, 4)
    said, drawn = by_moments(model, x, "regression"), lb.predict(model, x, 4000, task="regression", chunk=10**6)
    assert seen[0] == (3, 5)
    assert float(((said.mean - drawn.mean).abs() / drawn.epistemic.sqrt()).max()) < 5 / 4000**0.5


def test_a_rule_of_ones_own() -> None:
    @rule("deg2rad")
    def _deg2rad(x: Moments) -> Moments:
        return Moments(torch.deg2rad(x.mean), torch.deg2rad(torch.deg2rad(x.variance)))

    class Model(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return torch.deg2rad(super().forward(x))

    try:
        model = Model(nn.Linear(3, 2))
        lb.bayesianize_(model, lb.MeanField())
        assert by_moments(model, torch.randn(2, 3)).engine == "moments"
    finally:
        FUNCTIONS.pop("deg2rad")


@pytest.mark.parametrize(
    "options",
    [
        {"mean_only": True},
        {"keep_samples": True},
        {"settle": 0.1},
        {"strategy": "vmap"},
        {"balanced": True},
        {"weights": torch.full((32,), 1 / 32)},
    ],
)
def test_options_of_samples_are_refused(options: dict[str, object]) -> None:
    model = network(nn.Linear(3, 2))
    with pytest.raises(PredictionError, match=next(iter(options))):
        by_moments(model, torch.randn(2, 3), **options)


def test_a_plain_model_is_one_pass() -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    assert torch.equal(by_moments(model, x).probs, lb.predict(model, x, task="classification").probs)


def test_modes_and_random_state_stay() -> None:
    model = network(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    before = torch.get_rng_state()
    by_moments(model, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, torch.get_rng_state())
    assert model.training
    assert all("forward" not in vars(m) for m in model.modules())


def test_check_moments_finds_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(10, 4)
    assert all(abs(row.variance_ratio - 1) < 0.2 for row in check_moments(model, x, 400))
    monkeypatch.setitem(FUNCTIONS, "tanh", lambda x: Moments(x.mean, 4 * x.variance))
    assert check_moments(model, x, 400)[1].variance_ratio > 2


def test_evaluate_takes_the_estimator() -> None:
    model = network(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    data = torch.randn(40, 6), torch.randint(3, (40,))
    options = {"task": "classification", "replicates": 0, "progress": False}
    found = lb.evaluate(model, data, estimator="moments", **options)  # type: ignore[arg-type]
    expected = -by_moments(model, data[0]).log_prob(data[1]).mean()
    assert found.metrics["nll"] == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(lb.LeanBayesError, match="mean_only"):
        lb.evaluate(model, data, estimator="moments", mean_only=True, **options)  # type: ignore[arg-type]


class _Shared(nn.Module):
    """One uncertain channel that eight others read, with a residual sum, and a head that adds all of them up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.spread, self.body = nn.Conv2d(1, 1, 3), nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 2)
        for layer in (self.spread, self.head):
            nn.init.constant_(layer.weight, 0.5)
        nn.init.constant_(self.body.weight, 0.01)
        nn.init.constant_(self.first.bias, 5.0)  # far from zero: rectifiers pass what they get

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.spread(torch.relu(self.first(x))))
        x = torch.relu(self.norm(self.body(x)) + x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("kernels", [True, False])
def test_channels_that_read_the_same_vary_together(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = _Shared().eval()
    lb.bayesianize_(model, {"first": lb.MeanField(std=0.1), "*": None})
    if not kernels:
        monkeypatch.setattr(gaussian, "serves", lambda *tensors: False)
    rows = {row.layer: row for row in check_moments(model, torch.rand(4, 1, 8, 8), samples=600)}
    assert 0.85 < rows["head"].variance_ratio < 1.15  # of independent channels it would be 0.05
    assert rows["head"].mean_error < 0.3
