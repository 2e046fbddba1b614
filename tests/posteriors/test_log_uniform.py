"""The curves of log alpha against thirty digits, against sampling, and against what the papers claim."""

import functools
from collections.abc import Callable

import mpmath as mp
import pytest
import torch
from torch import Tensor

from leanbayes.posteriors.log_uniform import cui, exact, kingma, molchanov

CURVES = [molchanov, kingma, cui, exact]
GRID = [x / 4 for x in range(-80, 81)]


@functools.cache
def closed_form(log_alpha: float) -> mp.mpf:
    """u 2F2(1, 1; 3/2, 2; -u), u = 1 / (2 alpha): twice the integral of Dawson's function up to sqrt(u)."""
    u = mp.exp(-mp.mpf(log_alpha)) / 2
    return u * mp.hyp2f2(1, 1, mp.mpf(3) / 2, 2, -u)


def by_definition(log_alpha: float) -> mp.mpf:
    """E log|1 + sqrt(alpha) eps| - log(alpha) / 2 + (gamma + log 2) / 2, by adaptive quadrature."""
    root = mp.exp(mp.mpf(log_alpha) / 2)
    cuts = sorted({mp.mpf(-14), mp.mpf(-3), mp.mpf(0), mp.mpf(3), mp.mpf(14), max(-1 / root, mp.mpf(-14))})
    mean = mp.quad(lambda e: mp.log(abs(1 + root * e)) * mp.npdf(e), cuts)
    return mean - mp.mpf(log_alpha) / 2 + (mp.euler + mp.log(2)) / 2


@functools.cache
def derivative(log_alpha: float) -> mp.mpf:
    """-sqrt(u) F(sqrt(u)), F Dawson's function: sqrt(pi) / 2 exp(-x^2) erfi(x)."""
    x = mp.exp(-mp.mpf(log_alpha) / 2) / mp.sqrt(2)
    if x > 50:  # where exp(-x^2) erfi(x) is 0 * infinity; the series is good to 30 digits there
        return -sum(mp.fac2(2 * k - 1) / (2 * (2 * x * x) ** k) for k in range(20))
    return -x * mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)


@pytest.fixture(autouse=True, scope="module")
def _thirty_digits() -> object:
    with mp.workdps(30):
        yield


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_exact_equals_thirty_digits(dtype: torch.dtype, tolerance: float) -> None:
    log_alpha = torch.tensor(GRID, dtype=dtype, requires_grad=True)
    value = exact(log_alpha)
    (slope,) = torch.autograd.grad(value.sum(), log_alpha)
    expected = torch.tensor([float(closed_form(x)) for x in GRID], dtype=torch.double)
    expected_slope = torch.tensor([float(derivative(x)) for x in GRID], dtype=torch.double)
    assert (value / expected - 1).abs().max() < tolerance
    assert (slope / expected_slope - 1).abs().max() < tolerance


@pytest.mark.parametrize("log_alpha", [-20.0, -6.0, -2.0, 0.0, 1.0, 5.0])
def test_the_closed_form_is_the_expectation(log_alpha: float) -> None:
    assert mp.almosteq(closed_form(log_alpha), by_definition(log_alpha), abs_eps=1e-12)


@pytest.mark.parametrize("log_alpha", [-3.0, 0.0, 2.0])
def test_the_closed_form_is_what_sampling_gives(log_alpha: float) -> None:
    torch.manual_seed(0)
    eps = torch.randn(1_000_000, dtype=torch.double)
    # Against the same draws at alpha = infinity, E log|eps|: the convention that the limit is 0.
    terms = (1 + torch.tensor(log_alpha / 2).exp() * eps).abs().log() - eps.abs().log() - log_alpha / 2
    error = terms.std() / 1e3
    assert abs(terms.mean() - exact(torch.tensor(log_alpha, dtype=torch.double))) < 4 * error


@pytest.mark.parametrize("curve", CURVES)
def test_gradients(curve: Callable[[Tensor], Tensor]) -> None:
    log_alpha = torch.tensor([-12.0, -4.7, -4.5, -1.0, 0.5, 6.0], dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(curve, log_alpha)
    assert torch.autograd.gradgradcheck(curve, log_alpha)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_overflows(curve: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    log_alpha = torch.tensor([-200.0, -100.0, -20.0, 20.0, 100.0, 200.0], dtype=dtype, requires_grad=True)
    value = curve(log_alpha)
    (slope,) = torch.autograd.grad(value.sum(), log_alpha)
    assert value.dtype == dtype
    assert value.isfinite().all()
    assert slope.isfinite().all()


def test_exact_meets_vmap_and_per_sample_gradients() -> None:
    log_alpha = torch.linspace(-8, 8, 9, dtype=torch.double)
    assert torch.allclose(torch.func.vmap(exact)(log_alpha), exact(log_alpha))
    slopes = torch.func.vmap(torch.func.grad(exact))(log_alpha)
    assert torch.allclose(slopes, torch.tensor([float(derivative(x)) for x in log_alpha.tolist()], dtype=torch.double))


def gap(curve: Callable[[Tensor], Tensor], low: float, high: float) -> Tensor:
    log_alpha = torch.linspace(low, high, 4001, dtype=torch.double)
    return curve(log_alpha) - exact(log_alpha)


def test_molchanov_is_within_its_published_error() -> None:
    assert round(gap(molchanov, -20, 20).abs().max().item(), 3) == 0.009


def test_kingma_is_close_up_to_alpha_one_and_flat_beyond() -> None:
    assert gap(kingma, -20, 0).abs().max() < 0.041
    assert gap(kingma, -20, -12).abs().max() < 1e-5
    assert torch.equal(kingma(torch.tensor(5.0)), kingma(torch.tensor(0.0)))


def test_cui_as_corrected_errs_by_a_tenth_on_its_range() -> None:
    difference = gap(cui, -5, 0.5)
    assert (difference - difference.mean()).abs().max().item() == pytest.approx(0.099, abs=1e-3)
    # The printed equation, with the square inside a second exponential, is worse than the corrected one.
    log_alpha = torch.linspace(-5, 0.5, 4001, dtype=torch.double)
    inner = torch.exp(0.5387 * (-0.2041 + 0.3492 * log_alpha) ** 2)
    printed = 0.5 * torch.log1p(torch.exp(-log_alpha)) - 0.7294 * torch.exp(-inner) - exact(log_alpha)
    assert (printed - printed.mean()).abs().max().item() == pytest.approx(0.249, abs=1e-3)


def test_only_cui_has_a_least_kl_at_a_finite_alpha() -> None:
    log_alpha = torch.linspace(-5, 5, 2001, dtype=torch.double)
    assert log_alpha[cui(log_alpha).argmin()].item() == pytest.approx(1.03, abs=0.01)
    assert (exact(log_alpha).diff() < 0).all()
    assert (molchanov(log_alpha).diff() < 0).all()
