"""E log(1 + w^2 / df) against adaptive quadrature in 25 digits, over the places where its formulas meet."""

import mpmath as mp
import pytest
import torch

from leanbayes.posteriors.student_t import _LOW, _RADIUS, expected_log1p_square, log1p_square

X = [0.0, 0.3, 2.0, 4.99, 5.01, 40.0]
U = [1e-9, 1e-3, 0.0149, 0.0151, 0.3, 4.99, 5.01, 1e4]


def by_quadrature(x: float, u: float) -> float:
    with mp.workdps(25):
        at = -mp.mpf(x)
        cuts = {mp.mpf(-12), at - 1e-3, at - u, at, at + u, at + 1e-3, mp.mpf(0), mp.mpf(12)}
        inside = sorted(c for c in cuts if -12 <= c <= 12)
        density = mp.sqrt(mp.pi)
        return float(mp.quad(lambda t: mp.exp(-t * t) / density * mp.log1p(((x + t) / u) ** 2), inside))


@pytest.mark.parametrize("x", X)
def test_it_equals_quadrature_to_many_digits(x: float) -> None:
    assert 0.0149 < _LOW < 0.0151
    assert 4.99 < _RADIUS < 5.01
    expected = torch.tensor([by_quadrature(x, u) for u in U], dtype=torch.double)
    u = torch.tensor(U, dtype=torch.double)
    found = expected_log1p_square(torch.tensor([x], dtype=torch.double), u)
    assert (found - expected).abs().max() < 1e-9
    single = expected_log1p_square(torch.tensor([-x]), u.float())  # symmetric in x
    assert ((single - expected).abs() / expected.abs().clamp(min=1)).max() < 2e-6
    # one by one is the same as all together: no formula looks at its neighbours
    alone = torch.stack([expected_log1p_square(torch.tensor(x, dtype=torch.double), v) for v in u])
    assert torch.allclose(alone, found, rtol=0, atol=1e-13)


def test_gradients_everywhere() -> None:
    x = torch.tensor([0.0, 2.0, 6.0] * 6, dtype=torch.double, requires_grad=True)
    u = torch.tensor(U[1:-1], dtype=torch.double).repeat_interleave(3).requires_grad_()
    assert torch.autograd.gradcheck(expected_log1p_square, (x, u), eps=1e-7, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (3, 4)])
def test_x_may_be_shared(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, dtype=torch.double, requires_grad=True)
    u = torch.logspace(-9, 1, 12, dtype=torch.double).reshape(3, 4).requires_grad_()
    whole = x.detach().expand(3, 4).clone().requires_grad_()
    shared, spread = expected_log1p_square(x, u), expected_log1p_square(whole, u)
    assert torch.allclose(shared, spread, rtol=0, atol=1e-9)
    (slope,) = torch.autograd.grad(shared.sum(), x)
    (slopes,) = torch.autograd.grad(spread.sum(), whole)
    assert torch.allclose(slope, slopes.sum_to_size(shape), rtol=1e-6)


def test_the_logarithm_does_not_overflow() -> None:
    r = torch.tensor([0.0, 1e-30, 0.5, 1.0, 3.0, -1e30], requires_grad=True)
    value = log1p_square(r)
    assert torch.allclose(value.double(), torch.log1p(r.double().square()), rtol=1e-6)
    (slope,) = torch.autograd.grad(value.sum(), r)
    assert torch.allclose(slope.double(), (2 * r.double() / (1 + r.double().square())), rtol=1e-5)
