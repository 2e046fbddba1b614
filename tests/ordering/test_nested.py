"""Nested dropout: its masks, and the theorem that it finds principal components, in order (Rippel et al., 2014)."""

import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import Tensor

from leanbayes.errors import ConfigError
from leanbayes.ordering import (
    categorical_tails,
    geometric_tails,
    gumbel_noise,
    log_keep,
    nested_dropout,
    nested_masks,
    ordered_masks,
    slope,
)


def test_masks_have_the_tails_and_equal_hard_downhill_samples() -> None:
    log_beta = geometric_tails(8, rate=0.25)
    noise = gumbel_noise((50_000, 8))
    masks = nested_masks(log_beta, noise)
    observed = masks.sum(-1).long().bincount(minlength=9)[1:].double()
    expected = log_beta.double().exp()
    assert stats.chisquare(observed.numpy(), (expected / expected.sum() * 50_000).numpy()).pvalue > 1e-3
    assert torch.equal(masks, slope(log_beta, 3.0, noise, hard=True))


def test_dropout_along_a_dimension() -> None:
    log_beta = categorical_tails([0.0, 1.0, 0.0, 0.0])  # always two
    x = torch.randn(5, 4, 3, 3)
    out = nested_dropout(x, log_beta)
    assert torch.equal(out[:, :2], x[:, :2])
    assert bool((out[:, 2:] == 0).all())
    uniform = categorical_tails(torch.ones(4))
    noise = gumbel_noise((5, 4))
    each = nested_dropout(x, uniform, noise=noise)
    assert torch.equal(each, x * nested_masks(uniform, noise)[:, :, None, None])
    one = nested_dropout(x.movedim(1, -1), uniform, dim=-1, per_sample=False, noise=noise[0])
    assert torch.equal(one.movedim(-1, 1), x * nested_masks(uniform, noise[0])[:, None, None])
    with pytest.raises(ConfigError, match="one entry a node along dim 1"):
        nested_dropout(x, categorical_tails(torch.ones(3)))
    with pytest.raises(ConfigError, match="noise: expected shape"):
        nested_dropout(x, uniform, noise=noise[0])


PIXELS = torch.from_numpy(load_digits().data).double()
NODES = 10


def expected_loss(covariance: Tensor, encoder: Tensor, decoder: Tensor, log_beta: Tensor) -> Tensor:
    """sum_j beta_j E|x - D (v_j * (E x))|^2, exact: nodes a and b are both kept with probability min(S_a, S_b)."""
    keep = log_keep(log_beta).exp()
    both = torch.minimum(keep[:, None], keep)
    crossed = covariance @ encoder
    fit = keep @ (crossed * decoder.T).sum(0)
    return covariance.trace() - 2 * fit + (both * (encoder.T @ crossed) * (decoder @ decoder.T)).sum()


def trained(log_beta: Tensor) -> Tensor:
    """The decoder of a linear autoencoder of the digits under nested dropout, (nodes, 64)."""
    covariance = torch.cov(PIXELS.T)
    covariance = covariance / covariance.trace()
    encoder, decoder = ((0.1 * torch.randn(shape).double()).requires_grad_() for shape in ((64, NODES), (NODES, 64)))
    search = torch.optim.LBFGS(
        [encoder, decoder], max_iter=500, history_size=30, line_search_fn="strong_wolfe", tolerance_change=1e-13
    )

    def closure() -> Tensor:
        search.zero_grad()
        loss = expected_loss(covariance, encoder, decoder, log_beta)
        loss.backward()
        return loss

    search.step(closure)
    return decoder.detach()


def test_the_expected_loss_is_that_of_the_masks() -> None:
    x = PIXELS[:200] - PIXELS[:200].mean(0)
    encoder, decoder = 0.1 * torch.randn(64, NODES).double(), 0.1 * torch.randn(NODES, 64).double()
    log_beta = geometric_tails(NODES, rate=0.2).double()
    exact = float(expected_loss(x.T @ x / 200, encoder, decoder, log_beta))
    each = [(x - (mask * (x @ encoder)) @ decoder).square().sum(-1).mean() for mask in ordered_masks(NODES).double()]
    assert float(log_beta.exp() @ torch.stack(each)) == pytest.approx(exact, rel=1e-6)
    rows = x.repeat(100, 1)
    drawn = (rows - nested_dropout(rows @ encoder, log_beta) @ decoder).square().sum(-1)
    assert abs(float(drawn.mean()) - exact) < 5 * float(drawn.std()) / len(drawn) ** 0.5


def test_a_linear_autoencoder_finds_the_principal_components_in_order() -> None:
    """At the optimum D_j E_j = u_j u_j^T: the best approximations of rank j and j - 1 differ by just that."""
    wanted = torch.from_numpy(PCA(8, svd_solver="full").fit(PIXELS.numpy()).components_)
    for log_beta in (categorical_tails(torch.ones(NODES)), geometric_tails(NODES, rate=0.1)):
        cosine = torch.cosine_similarity(trained(log_beta.double())[:8], wanted, dim=-1).abs()
        assert cosine.min() >= 0.99, cosine
    plain = trained(categorical_tails([0.0] * (NODES - 1) + [1.0]).double())  # nothing dropped: any basis will do
    assert torch.cosine_similarity(plain[:8], wanted, dim=-1).abs().min() < 0.9
