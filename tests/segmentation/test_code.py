"""Codes with a learned prior: the KL against Monte Carlo, lengths, and what is drawn from where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import leanbayes as lb
from leanbayes.errors import ConversionError
from leanbayes.ordering import slope
from leanbayes.segmentation.code import ConditionalCode, GaussianConditionalCode, OrderedConditionalCode

SIZE = 4


def made(**options: object) -> OrderedConditionalCode:
    """An ordered code whose heads are not those of the start."""
    torch.manual_seed(0)
    code = OrderedConditionalCode(3, lb.OrderedLatents(SIZE, **options)).double()  # type: ignore[arg-type]
    if code.config.tails == "learned":
        for tail in (code.prior_tail, code.posterior_tail):
            nn.init.normal_(tail.weight)
    return code


def features() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 2, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1)).unbind()


def gaussians(code: ConditionalCode, prior: Tensor, posterior: Tensor) -> tuple[Normal, Normal]:
    assert isinstance(code, (GaussianConditionalCode, OrderedConditionalCode))
    return Normal(*code.posterior(posterior)), Normal(*code.prior(prior))


def test_the_kl_of_gaussians_is_torchs() -> None:
    torch.manual_seed(0)
    code, (x, y) = GaussianConditionalCode(3, lb.GaussianLatents(SIZE)).double(), features()
    q, p = gaussians(code, x, y)
    torch.testing.assert_close(code(x, y)[1], torch.distributions.kl_divergence(q, p).sum(1))
    assert code(x)[1] is None


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_the_kl_of_an_ordered_code_is_that_of_its_draws(floor: float) -> None:
    """log q(z, h) - log p(z, h) of many draws, where latents that are not kept have no density."""
    code, (x, y) = made(floor=floor), features()
    q, p = gaussians(code, x, y)
    q_tails, p_tails = code.tails_of(code.posterior_tail(y)), code.tails_of(code.prior_tail(x))
    count, generator = 60_000, torch.Generator().manual_seed(2)
    gumbel = -torch.empty(count, 2, SIZE, dtype=torch.double).exponential_(generator=generator).log()
    mask = slope(q_tails, 1.0, gumbel, hard=True)
    last = mask.sum(-1, keepdim=True).long() - 1
    h = q.mean + q.stddev * torch.randn(count, 2, SIZE, dtype=torch.double, generator=generator)
    of_length = (q_tails - p_tails).expand(count, -1, -1).gather(-1, last).squeeze(-1)
    ratio = of_length + ((q.log_prob(h) - p.log_prob(h)) * mask).sum(-1)
    with torch.no_grad():
        assert ((ratio.mean(0) - code(x, y)[1]).abs() < 4 * ratio.std(0) / count**0.5).all()


def test_a_set_length_keeps_the_first_latents_and_pays_for_them() -> None:
    code, (x, y) = made(), features()
    q, p = gaussians(code, x, y)
    each = torch.distributions.kl_divergence(q, p)
    for length in (1, 3, SIZE):
        assert lb.set_length_(nn.Sequential(code), length) == {"code": length}
        drawn, kl = code(x, y)
        torch.testing.assert_close(kl, each[:, :length].sum(1))
        assert (drawn[:, :length] != 0).all()
        assert (drawn[:, length:] == 0).all()
        with lb.using(mean_only=True):
            torch.testing.assert_close(code(x)[0][:, :length], p.mean[:, :length])


def test_lengths_of_draws_follow_the_tails_of_prior_or_posterior() -> None:
    code, (x, y) = made().eval(), features()
    torch.manual_seed(3)
    many = [part[:1].expand(20_000, -1) for part in (x, y)]
    with torch.no_grad():
        for drawn, tails in (
            (code(many[0])[0], code.tails_of(code.prior_tail(x[:1]))),
            (code(*many)[0], code.tails_of(code.posterior_tail(y[:1]))),
        ):
            share = (drawn != 0).sum(1).bincount(minlength=SIZE + 1)[1:] / len(drawn)
            assert (share - tails[0].exp()).abs().max() < 4 * 0.5 / 20_000**0.5


def test_tails_start_at_the_chain_and_stay_there_where_they_are_not_learned() -> None:
    torch.manual_seed(0)
    start = OrderedConditionalCode(3, lb.OrderedLatents(SIZE, prior_keep=0.5, floor=0.0))
    torch.testing.assert_close(
        start.tails_of(start.prior_tail(torch.randn(1, 3))).exp()[0], torch.tensor([0.5, 0.25, 0.125, 0.125])
    )
    even = made(tails="uniform")
    assert not any(p.requires_grad for p in even.posterior_tail.parameters())
    torch.testing.assert_close(even.tails().exp(), torch.full((SIZE,), 0.25, dtype=torch.double))
    with pytest.raises(ConversionError, match=r"depend on the image; model\.lengths"):
        made().tails()


def test_gradients_reach_prior_and_posterior() -> None:
    code, (x, y) = made(), features()
    drawn, kl = code(x, y)
    (drawn.square().sum() + kl.sum()).backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in code.parameters())
