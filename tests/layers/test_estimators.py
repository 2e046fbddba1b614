import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.errors import ConfigError
from leanbayes.layers import perturb

from .cases import CASES, EMBEDDINGS, converted, inputs_of, moments

DRAWS = 8000
ESTIMATORS = ("local", "weight", "flipout")


def z_limit(elements):
    """The |z| that one of this many standard normals exceeds by chance once in 10,000 runs."""
    return torch.special.ndtri(torch.tensor(1 - 1e-4 / (2 * elements), dtype=torch.float64)).item()


def check_moments(draws, mean, variance):
    """The z-test of the mean, and of the variance through Wilson and Hilferty's cube root of a chi-square."""
    count, limit = draws.shape[0], z_limit(mean.numel())
    fixed = variance == 0
    assert torch.allclose(draws[:, fixed], mean[fixed].expand(count, -1), atol=1e-12)
    draws, mean, variance = draws[:, ~fixed], mean[~fixed], variance[~fixed]
    z = (draws.mean(0) - mean) / (variance / count).sqrt()
    assert z.abs().max() < limit, "mean"
    ratio = (draws - mean).square().mean(0) / variance
    z = (ratio.pow(1 / 3) - (1 - 2 / (9 * count))) / math.sqrt(2 / (9 * count))
    assert z.abs().max() < limit, "variance"


def sampled(layer, x, estimator, count=DRAWS):
    with torch.no_grad(), lb.using(estimator=estimator):
        return torch.func.vmap(lambda _: layer(x), randomness="different", chunk_size=500)(torch.arange(count))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("case", CASES)
def test_every_output_element_has_the_mean_and_variance_of_the_closed_form(case, estimator):
    make, shape = CASES[case]
    module, x = make(), inputs_of(shape)
    layer = converted(module)
    check_moments(sampled(layer, x, estimator), *moments(module, layer, x))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("case", EMBEDDINGS)
def test_embedding_rows_have_their_moments_and_the_padding_row_has_no_noise(case, estimator):
    module, x = EMBEDDINGS[case](), torch.tensor([[0, 1, 4], [1, 2, 2]])
    layer = converted(module)
    check_moments(sampled(layer, x, estimator), *moments(module, layer, x))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("granularity", ["weight", "neuron", "layer"])
def test_multiplicative_noise_has_the_moments_of_the_closed_form(granularity, estimator):
    module, x = nn.Conv2d(2, 3, 2), inputs_of((2, 2, 3, 3))
    method = lb.VariationalDropout(parameterisation="multiplicative", granularity=granularity, log_alpha=-1.0)
    layer = converted(module, method)
    check_moments(sampled(layer, x, estimator), *moments(module, layer, x))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_plain_bias_stays_plain(estimator):
    module, x = nn.Linear(3, 2), torch.zeros(4, 3, dtype=torch.float64)
    layer = converted(module, lb.MeanField(random_bias=False))
    with lb.using(estimator=estimator):
        assert torch.equal(layer(x), module.double().bias.expand(4, 2))


def check_covariance(draws, expected):
    """The z-test of every entry of a covariance; Var[s_ij] = (S_ii S_jj + S_ij^2) / n for Gaussians."""
    count = draws.shape[0]
    centred = draws - draws.mean(0)
    found = centred.T @ centred / count
    spread = expected.diag().outer(expected.diag()) + expected.square()
    z = (found - expected) / (spread / count).sqrt()
    assert z.abs().max() < z_limit(expected.numel())


def linear_and_batch():
    layer = converted(nn.Linear(3, 2))
    x = torch.randn(3, 3, dtype=torch.float64)
    x[1] = x[0]  # the same datum twice: the strongest case of covariance between data
    w, b = layer.posteriors["weight"].variance.detach(), layer.posteriors["bias"].variance.detach()
    return layer, x, w, b


def test_weight_sampling_shares_its_noise_between_data():
    layer, x, w, b = linear_and_batch()
    # Cov[y_ni, y_mj] = [i = j] (sum_k x_nk x_mk var_ik + var_i)
    between = torch.einsum("nk,mk,ik->inm", x, x, w) + b[:, None, None]
    expected = torch.zeros(3, 2, 3, 2, dtype=torch.float64)
    for i in range(2):
        expected[:, i, :, i] = between[i]
    check_covariance(sampled(layer, x, "weight", 20_000).flatten(1), expected.reshape(6, 6))


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_local_noise_and_flipout_have_no_covariance_between_data_or_outputs(estimator):
    layer, x, w, b = linear_and_batch()
    expected = (x.square() @ w.T + b).flatten().diag()
    check_covariance(sampled(layer, x, estimator, 20_000).flatten(1), expected)


def test_flipout_shares_its_noise_up_to_signs_and_local_noise_does_not():
    """Magnitudes of two equal data are dependent under Flipout: one draw of the weights is behind both."""
    layer, x, _, _ = linear_and_batch()
    layer = converted(nn.Linear(1, 1, bias=False))
    x = torch.ones(2, 1, dtype=torch.float64)
    mean = layer.posteriors["weight"].mean.item()
    flipped = sampled(layer, x, "flipout", 50)[..., 0] - mean
    assert torch.allclose(flipped[:, 0].abs(), flipped[:, 1].abs())
    assert (flipped[:, 0] * flipped[:, 1] < 0).any()
    local = sampled(layer, x, "local", 50)[..., 0] - mean
    assert not torch.isclose(local[:, 0].abs(), local[:, 1].abs()).any()


def test_for_one_datum_local_noise_and_weight_sampling_have_the_same_joint_law():
    layer, x, w, b = linear_and_batch()
    expected = (x[:1].square() @ w.T + b)[0].diag()
    for estimator in ("local", "weight"):
        draws = sampled(layer, x[:1], estimator, 20_000)[:, 0]
        check_covariance(draws, expected)
        # Gaussian with that covariance: the squared length after whitening is chi-square of 2, mean 2 and variance 4
        white = (draws - layer.mean("weight") @ x[0] - layer.mean("bias")) / expected.diag().sqrt()
        length = white.square().sum(1)
        assert abs(length.mean().item() - 2) < 4.5 * math.sqrt(4 / 20_000)
        assert abs(length.var().item() - 4) < 4.5 * math.sqrt(128 / 20_000)  # fourth central moment 144 - 4^2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_are_finite_where_the_variance_is_zero_or_tiny(estimator):
    for make, shape in (CASES["linear-no-bias"], CASES["conv2d-valid-no-bias"]):
        layer = converted(make(), dtype=torch.float32)
        layer.posteriors["weight"].rho.data.fill_(-100.0)  # softplus(-100) = 4e-44
        x = torch.zeros(shape, requires_grad=True)
        with lb.using(estimator=estimator):
            layer(x).square().sum().backward()
            layer(torch.randn(shape) * 1e-20).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("sigma", [1e-15, 1e-6, 1e-2, 3.0])
def test_local_noise_is_exact_for_small_sigmas_and_flat_where_there_is_none(sigma, compiled, monkeypatch):
    """y = mu x + sigma |x| eps: dy/drho = sigmoid(rho) |x| eps, and 0 at x = 0."""
    if not compiled:
        monkeypatch.setattr(perturb, "_compiled", lambda mean, variance: False)
    torch.manual_seed(0)
    layer = converted(nn.Linear(1, 1, bias=False), dtype=torch.float32)
    q = layer.posteriors["weight"]
    q.loc.data.zero_()
    q.rho.data.fill_(math.log(math.expm1(sigma)))
    for value in (-2.0, 0.0):
        layer.zero_grad()
        x = torch.tensor([[value]], requires_grad=True)
        with lb.using(estimator="local"):
            y = layer(x)
        y.backward()
        eps = y.item() / (sigma * abs(value)) if value else y.item()
        assert 1e-3 < abs(eps) < 6 if value else eps == 0
        assert q.rho.grad.item() == pytest.approx(-math.expm1(-sigma) * abs(value) * eps, rel=1e-5, abs=0)
        assert x.grad.item() == pytest.approx(-sigma * eps, rel=1e-5, abs=0)


def test_what_is_not_finite_is_not_hidden():
    """A NaN must reach the loss, where training names the layer; no clean-up of the noise may swallow it."""
    for estimator in ESTIMATORS:
        for broken in ("loc", "rho"):
            layer = converted(nn.Linear(2, 2), dtype=torch.float32)
            getattr(layer.posteriors["weight"], broken).data[0, 0] = math.nan
            with lb.using(estimator=estimator):
                y = layer(torch.ones(3, 2))
            assert y[:, 0].isnan().all()
            assert y[:, 1].isfinite().all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_for_every_datum_by_torch_func(estimator):
    layer, x = converted(nn.Linear(3, 2)), torch.randn(5, 3, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, row):
        with lb.using(estimator=estimator):
            return torch.func.functional_call(layer, parameters, (row.unsqueeze(0),)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0), randomness="different")(parameters, x)
    assert all(g.shape == (5, *parameters[name].shape) and g.isfinite().all() for name, g in each.items())


@pytest.mark.parametrize("case", ["linear", "conv2d-reflect", "transposed2d"])
def test_gradcheck_of_weight_sampling_with_fixed_noise(case):
    make, shape = CASES[case]
    layer, x = converted(make()), inputs_of(shape).requires_grad_()
    draws = {id(q): q.noise() for q in layer.posteriors.values()}

    def run(x, *_):
        with lb.using(estimator="weight", draws=draws):
            return layer(x)

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()), fast_mode=True)


def test_gradcheck_of_local_noise_with_fixed_noise(monkeypatch):
    layer, x = converted(nn.Linear(4, 3)), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(2, 3, dtype=torch.float64)
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


@pytest.mark.parametrize("module", [nn.Linear(64, 32, bias=False), nn.Conv2d(4, 8, 3, bias=False)])
def test_a_small_sigma_survives_autocast(module):
    """The means are zero, so that what comes out is the noise alone."""
    layer = converted(module, lb.MeanField(std=1e-4), dtype=torch.float32)
    for q in layer.posteriors.values():
        q.loc.data.zero_()
        q.rho.data = rho = torch.full_like(q.rho, 1e-4)
        q.rho.data = rho.expm1().log()
    x = torch.ones(256, 64) if isinstance(module, nn.Linear) else torch.ones(64, 4, 6, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    expected = 1e-4 * math.sqrt(64 if isinstance(module, nn.Linear) else 36)
    assert y.float().std().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_small_sigma_survives_parameters_of_half_precision(dtype):
    layer = converted(nn.Linear(16, 8), dtype=dtype)
    layer.posteriors["weight"].rho.data.fill_(-9.0)  # 1.2e-4, whose square is below what float16 can hold
    assert layer.variance("weight").dtype == torch.float32
    assert torch.allclose(layer.variance("weight"), torch.tensor(1.23e-4**2), rtol=0.05)
    assert layer(torch.ones(2, 16, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_double_precision_stays_double(estimator):
    layer = converted(nn.Conv1d(2, 3, 2))
    with lb.using(estimator=estimator):
        assert layer(torch.randn(2, 2, 4, dtype=torch.float64)).dtype == torch.float64


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="'local', 'weight', 'flipout'"), lb.using(estimator="reparam"):
        pass
    with pytest.raises(ConfigError, match="estimator"):
        lb.MeanField(estimator="reparam")
