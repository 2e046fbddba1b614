"""kappa against the whole Hessian of small networks, and what is done with it."""

import copy
import math

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.nn import functional as F

import leanbayes as lb
from leanbayes.compress import curvature
from leanbayes.compress.kappa import frozen, kappa
from leanbayes.data import load
from leanbayes.errors import ConfigError, ConversionError, DataError
from leanbayes.sampling import using
from leanbayes.training.recalibrate import recalibrate_

DIGITS = load("digits")
X, Y = (t[:80] for t in DIGITS.train.tensors)
LAYERS = ("0", "3", "8")


def convolutional(activation: type[nn.Module], log_alpha: float = 2.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), activation(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), activation(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 12, bias=False), nn.BatchNorm1d(12), activation(),
        nn.Linear(12, 10),
    )  # fmt: skip
    lb.bayesianize_(model, {name: lb.Variance(log_alpha=log_alpha) for name in LAYERS})
    recalibrate_(model, (DIGITS.train.tensors[0],), at="means")  # so that no unit is dead at the means
    return model.eval()


def whole_hessian(model: nn.Module, name: str, x=X, y=Y, loss=None) -> torch.Tensor:
    """The diagonal by brute force: all of the Hessian in the layer's weights, differentiated through its parameter."""
    q = model.get_submodule(name).posteriors["weight"]

    def total(w: torch.Tensor) -> torch.Tensor:
        with using(mean_only=True):
            outputs = torch.func.functional_call(model, {f"{name}.posteriors.weight.loc": w}, (x,))
        return F.cross_entropy(outputs, y, reduction="sum") if loss is None else loss(outputs, y)

    start = q.loc.detach().clone()
    size = start.numel()
    return torch.func.hessian(total)(start).reshape(size, size).diagonal().reshape(start.shape)


def expected(model: nn.Module, name: str, **options) -> torch.Tensor:
    diagonal = whole_hessian(model, name, **options)
    return (diagonal.abs() * model.get_submodule(name).posteriors["weight"].variance).detach()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus])
@pytest.mark.parametrize("name", LAYERS)
def test_exact_is_the_diagonal_of_the_hessian(activation, name) -> None:
    model = convolutional(activation)
    found = kappa(model, (X, Y), task="classification", layers=[name], method="exact", progress=False)
    truth = expected(model, name)
    assert list(found) == [f"{name}.weight"]
    assert float(truth.max()) > 0
    torch.testing.assert_close(found[f"{name}.weight"], truth, rtol=2e-3, atol=2e-5 * float(truth.max()))


def test_the_order_of_memory_does_not_matter() -> None:
    model = convolutional(nn.Softplus)
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert not other[3].posteriors["weight"].loc.is_contiguous()
    options = {"task": "classification", "layers": ["3"], "method": "exact", "progress": False}
    found, again = (kappa(one, (X[:20], Y[:20]), **options)["3.weight"] for one in (model, other))
    torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-5 * float(found.max()))


@pytest.mark.parametrize("name", LAYERS)
def test_gauss_newton_is_exact_where_all_is_piecewise_linear(name) -> None:
    model = convolutional(nn.ReLU)
    found = kappa(model, (X, Y), task="classification", layers=[name], method="gauss-newton", progress=False)
    truth = expected(model, name)
    torch.testing.assert_close(found[f"{name}.weight"], truth, rtol=2e-3, atol=2e-5 * float(truth.max()))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus, nn.GELU])
def test_estimators_rank_as_the_exact_diagonal(activation) -> None:
    """On a trained network, with fewer probes than weights."""
    model = convolutional(activation, log_alpha=-2.0)
    lb.fit(model, DIGITS.train.tensors, epochs=5, lr=5e-3, batch_size=64, progress=False)
    for name, size in (("3", 108), ("8", 192)):  # a convolution and a Linear layer
        truth = expected(model, name).flatten()
        assert len(truth) == size
        for method, probes in (("auto", 60), ("hutchinson", 60)):
            options = {"method": method, "probes": probes, "layers": [name], "progress": False}
            found = kappa(model, (X, Y), **options)[f"{name}.weight"]
            assert spearmanr(found.flatten(), truth).statistic >= 0.95, (name, method)


def test_hutchinson_is_unbiased() -> None:
    """Within five standard errors, estimated from the spread of independent runs."""
    model = convolutional(nn.Softplus)
    batch = curvature.Batch(curvature.inspect(model, model[3], X), X, Y, lb.Classification())
    with using(mean_only=True), torch.no_grad():
        runs = []
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            runs.append(curvature.diagonal(batch, "hutchinson", 4, generator)["weight"].detach())
    stacked = torch.stack(runs).double()
    error = (stacked.mean(0) - whole_hessian(model, "3").detach()).abs() / (stacked.std(0) / math.sqrt(len(runs)))
    assert float(error.max()) < 5
    assert float(error.square().mean()) < 1.6


def test_auto_takes_the_method_that_is_exact() -> None:
    for activation, convolution in ((nn.ReLU, "gauss-newton"), (nn.Softplus, "hutchinson")):
        model = convolutional(activation)
        with using(mean_only=True), torch.no_grad():
            layers = [curvature.inspect(model, model.get_submodule(name), X) for name in LAYERS]
            chosen = [curvature.best_method(curvature.Batch(at, X, Y, lb.Classification()), 50) for at in layers]
        # 27 weights are fewer than 50 probes
        assert chosen == ["exact", convolution, "exact"]


def test_batches_sum_and_samples_scale() -> None:
    model = convolutional(nn.Softplus)
    options = {"task": "classification", "layers": ["8"], "progress": False}
    whole = kappa(model, (X, Y), **options)["8.weight"]
    parts = kappa(model, [(X[:30], Y[:30]), (X[30:], Y[30:])], **options)["8.weight"]
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6 * float(whole.max()))
    scaled = kappa(model, (X, Y), num_data=800, **options)["8.weight"]
    torch.testing.assert_close(scaled, 10 * whole)


def test_regression_and_random_biases() -> None:
    """A linear model with squared error: the Hessian is known by hand, sum of x^2 over the noise variance."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    lb.bayesianize_(model, lb.MeanField(std=0.5))
    x, y = torch.randn(50, 3), torch.randn(50, 2)
    truth = {"0.weight": 0.25 * x.square().sum(0).expand(2, 3) / 4, "0.bias": torch.full((2,), 0.25 * 50 / 4)}
    # the network is linear in its weights, so that nothing is left for the probes to estimate
    for method in ("auto", "exact", "gauss-newton", "hutchinson"):
        found = kappa(model, (x, y), task=lb.Regression(std=2.0), method=method, probes=2, progress=False)
        for name, values in truth.items():
            torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-5)


def test_shared_weights_are_not_taken_for_a_linear_layer_on_vectors() -> None:
    """A Linear layer over positions shares its weights: cross terms between positions count."""
    torch.manual_seed(0)

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.outer(F.softplus(self.inner(x)).sum(1))

    model = Positions()
    lb.bayesianize_(model, {"inner": lb.Variance(log_alpha=1.0)})
    x, y = torch.randn(20, 6, 4), torch.randint(3, (20,))
    found = kappa(model, (x, y), task="classification", method="exact", progress=False)["inner.weight"]
    torch.testing.assert_close(found, expected(model, "inner", x=x, y=y), rtol=2e-3, atol=1e-4)


def test_the_model_is_left_as_it_was() -> None:
    model = convolutional(nn.Softplus).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    kappa(model, (X, Y), task="classification", progress=False)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_pruned_weights_have_no_kappa() -> None:
    model = convolutional(nn.Softplus)
    lb.prune_(model, fraction=0.5, scope="layer")
    found = kappa(model, (X, Y), task="classification", layers=["8"], progress=False)["8.weight"]
    assert not bool(found[~model[8].posteriors["weight"].keep].any())


def test_prune_by_kappa() -> None:
    model = convolutional(nn.Softplus)
    scores = kappa(model, (X, Y), task="classification", layers=["8"], progress=False)
    values = scores["8.weight"]
    pruned = copy.deepcopy(model)
    report = lb.prune_(pruned, by="kappa", scores=scores, fraction=0.95)
    keep = pruned[8].posteriors["weight"].keep
    assert report.kept == int(keep.sum()) == values.numel() - round(0.95 * values.numel())
    assert float(values[keep].min()) >= float(values[~keep].max())
    assert [t.name for t in report.tensors] == ["8.weight"]  # the layers without a score are left alone
    assert pruned[0].posteriors["weight"].keep is None

    by_threshold = copy.deepcopy(model)
    limit = float(values.median())
    lb.prune_(by_threshold, by="kappa", scores=scores, threshold=limit)
    assert torch.equal(by_threshold[8].posteriors["weight"].keep, values >= limit)


def test_prune_by_kappa_computes_it_from_a_loader() -> None:
    model = convolutional(nn.ReLU)
    lb.fit(model, (X, Y), epochs=1, progress=False)  # so that it knows its task
    scores = kappa(model, (X, Y), progress=False)
    other = copy.deepcopy(model)
    lb.prune_(model, by="kappa", scores=scores, fraction=0.5)
    lb.prune_(other, by="kappa", loader=(X, Y), fraction=0.5)
    for name in LAYERS:
        mine, theirs = (m.get_submodule(name).posteriors["weight"].keep for m in (model, other))
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def test_frozen_weights_are_their_means_and_the_others_stay_random() -> None:
    model = convolutional(nn.Softplus)
    scores = kappa(model, (X, Y), task="classification", layers=["8"], progress=False)
    half = frozen(model, scores, fraction=0.5)
    q, was = half[8].posteriors["weight"], model[8].posteriors["weight"]
    still = scores["8.weight"] <= scores["8.weight"].flatten().kthvalue(round(0.5 * q.mean.numel())).values
    assert torch.equal(q.std == 0, still)
    torch.testing.assert_close(q.std[~still], was.std[~still], rtol=1e-5, atol=0.0)
    draws = torch.stack([q.sample() for _ in range(3)])
    assert torch.equal(draws[:, still], was.mean[still].expand(3, -1))
    assert bool((draws[0] != draws[1])[~still].all())
    assert type(model[8].posteriors["weight"]).__name__ == "MultiplicativeGaussian"  # a copy was changed

    nothing = frozen(model, scores, threshold=0.0)
    assert bool((nothing[8].posteriors["weight"].std > 0).all())


def test_a_network_frozen_whole_predicts_as_its_means() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    lb.bayesianize_(model, lb.Variance(log_alpha=3.0))
    x = torch.randn(10, 4)
    scores = {f"{n}.weight": torch.ones_like(model[n].weight) for n in (0, 2)}
    still = frozen(model, scores, fraction=1.0)
    for estimator in ("weight", "local", "flipout"):
        sampled = lb.predict(still, x, samples=2, task="classification", estimator=estimator)
        torch.testing.assert_close(sampled.probs, lb.predict(model, x, mean_only=True, task="classification").probs)


def test_refusals() -> None:
    model = convolutional(nn.ReLU)
    scores = {"8.weight": torch.ones(12, 16)}
    ask = {"task": "classification", "progress": False}
    cases = [
        (lambda: kappa(nn.Linear(2, 2), (X, Y), **ask), ConversionError, "random layers"),
        (lambda: kappa(model, (X, Y), layers=["9"], **ask), ConfigError, "names of random layers"),
        (lambda: kappa(model, (X, Y), layers="8", **ask), ConfigError, "several names"),
        (lambda: kappa(model, (X, Y), method="fisher", **ask), ConfigError, "expected one of 'auto'"),
        (lambda: kappa(model, (X, Y), probes=0, **ask), ConfigError, "probes"),
        (lambda: kappa(model, (X, Y), num_data=0, **ask), ConfigError, "num_data"),
        (lambda: kappa(model, [X], **ask), DataError, "targets"),
        (lambda: kappa(model, [], **ask), DataError, "at least one datum"),
        (lambda: lb.prune_(model, by="kappa", fraction=0.5), ConfigError, "scores or a loader, received neither"),
        (lambda: lb.prune_(model, by="kappa", fraction=0.5, scores=scores, loader=(X, Y)), ConfigError, "both"),
        (lambda: lb.prune_(model, fraction=0.5, scores=scores), ConfigError, "by='kappa' only"),
        (lambda: lb.prune_(model, by="kappa", scores=scores), ConfigError, "a fraction or a threshold"),
        (lambda: lb.prune_(model, by="kappa", scores=scores, threshold=-1.0), ConfigError, "number of at least 0"),
        (lambda: lb.prune_(model, by="kappa", scores={"8": scores["8.weight"]}, fraction=0.5), ConfigError, "names of"),
        (lambda: lb.prune_(model, by="kappa", scores={"8.weight": torch.ones(3)}, fraction=0.5), ConfigError, "shape"),
        (lambda: lb.prune_(model, by="kappa", scores={}, fraction=0.5), ConfigError, "received none"),
        (lambda: frozen(model, {"8.weight": torch.full((12, 16), math.nan)}, fraction=0.5), ConfigError, "NaN"),
        (lambda: frozen(model, scores, fraction=2.0), ConfigError, "fraction"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    assert all(model.get_submodule(n).posteriors["weight"].keep is None for n in LAYERS)


def test_layers_without_means_are_refused() -> None:
    model = convolutional(nn.ReLU)
    lb.bayesianize_(model, {"11": lb.Variance(parameterisation="zero")})
    with pytest.raises(ConfigError, match="no mean but zero by construction"):
        kappa(model, (X, Y), task="classification", layers=["8"], progress=False)
