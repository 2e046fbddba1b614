"""std = softplus(rho) and its inverse."""

import pytest
import torch

from leanbayes.errors import ConfigError
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian
from leanbayes.posteriors.scale import rho_from_std, rho_like, std_from_rho


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_inverse_is_stable_over_sixteen_decades(dtype: torch.dtype) -> None:
    std = torch.logspace(-12, 4, 1601, dtype=torch.double).to(dtype)
    rho = rho_from_std(std)
    assert rho.isfinite().all()
    # Where std is small rho = log std, so that half a unit in the last place of rho is a relative error of std.
    bound = (2 + rho.abs().clamp(max=30)) * torch.finfo(dtype).eps
    assert ((std_from_rho(rho) / std - 1).abs() <= bound).all()


def test_softplus_does_not_jump_where_it_turns_linear() -> None:
    rho = torch.tensor([19.9, 20.1, 39.9, 40.1], dtype=torch.double)
    assert torch.allclose(std_from_rho(rho), torch.logaddexp(rho, torch.zeros_like(rho)), rtol=1e-15, atol=0)


def test_gradients_are_finite_at_both_ends() -> None:
    rho = torch.tensor([-80.0, 0.0, 1e4], requires_grad=True)
    std_from_rho(rho).sum().backward()
    assert rho.grad is not None
    assert rho.grad.isfinite().all()
    assert rho.grad[2] == 1


def test_rho_like_takes_a_number_or_a_tensor() -> None:
    w = torch.zeros(2, 3, dtype=torch.double)
    assert torch.allclose(std_from_rho(rho_like(w, 0.1)), torch.full_like(w, 0.1), rtol=1e-14)
    rows = torch.tensor([[0.1], [0.2]], dtype=torch.double)
    assert torch.allclose(std_from_rho(rho_like(w, rows)), rows.expand(2, 3), rtol=1e-14)
    assert rho_like(w.half(), 1e-3).dtype == torch.half
    assert rho_like(w.to("meta"), 0.1).is_meta


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, 0.0, 1.0])])
def test_a_std_that_is_not_positive_is_refused(std: object) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        rho_like(torch.zeros(3), std)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="broadcasts"):
        rho_like(torch.zeros(3), torch.ones(2))
    if isinstance(std, float):
        with pytest.raises(ConfigError, match="above 0"):
            rho_like(torch.zeros(3, device="meta"), std)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_parameters_of_one_weight_share_its_memory_format(format):
    w = torch.randn(4, 3, 5, 5).contiguous(memory_format=format)
    gaussian = Gaussian.from_tensor(w)
    multiplicative = MultiplicativeGaussian.from_tensor(w, "weight")
    for parameter in (*gaussian.parameters(), *multiplicative.parameters()):
        assert parameter.stride() == w.stride()
