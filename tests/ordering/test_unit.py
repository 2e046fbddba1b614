"""The ordering unit against enumeration, finite differences and frequencies."""

import math

import pytest
import torch
from scipy import stats

from leanbayes.convert.channels import Group, Use
from leanbayes.errors import ConversionError
from leanbayes.ordering import categorical_tails, log_tails, ordered_masks, tail_kl, uniform_logits
from leanbayes.ordering.placement import cut
from leanbayes.ordering.unit import OrderingUnit
from leanbayes.sampling import using

USE = Use("consumer", dim=-1)


def unit(size=12, groups=6, base=2, log_beta=None, **options):
    group = Group("a", size)
    steps = cut(group, groups, base)
    prior = log_tails(uniform_logits(steps.nodes)).double()
    return OrderingUnit(group, steps, prior if log_beta is None else log_beta, prior, **options)


BETA = categorical_tails(torch.tensor([0.1, 0.3, 0.2, 0.15, 0.25], dtype=torch.double))


def drawn(u, x):
    u.draw.current = None
    return u.mask(x, USE)


@pytest.mark.parametrize("learned", [True, False])
def test_widths_are_drawn_with_the_tail_probabilities(learned):
    torch.manual_seed(0)
    u = unit(log_beta=BETA, learned=learned)
    x, draws = torch.zeros(1, 12), 3_000
    with torch.no_grad():
        kept = torch.stack([drawn(u, x).sum() for _ in range(draws)])
    counts = torch.bincount(kept.long(), minlength=13)
    sizes = [len(u.kept_channels(nodes)) for nodes in range(1, 6)]
    assert sizes == [4, 6, 8, 10, 12]
    assert counts.sum() == counts[sizes].sum() == draws
    assert stats.chisquare(counts[sizes].numpy(), (draws * BETA.exp()).numpy()).pvalue > 1e-3


def test_one_mask_a_datum_has_the_same_law():
    torch.manual_seed(0)
    u = unit(log_beta=BETA, per_sample=True)
    mask = drawn(u, torch.zeros(20_000, 7, 12))
    assert mask.shape == (20_000, 1, 12)
    counts = torch.bincount(mask.sum((1, 2)).long(), minlength=13)[[4, 6, 8, 10, 12]]
    assert stats.chisquare(counts.numpy(), (20_000 * BETA.exp()).numpy()).pvalue > 1e-3
    with pytest.raises(ConversionError, match="per_sample=False"):
        u.mask(torch.zeros(3, 12), USE)
    u.eval()
    assert drawn(u, torch.zeros(3, 12)) is None  # the full width
    u.free = False  # one that draws widths in predictions, too: no data to tell apart, but for training
    assert drawn(u, torch.zeros(3, 12)).shape == (12,)


def test_the_keep_probability_is_what_enumeration_says():
    u = unit(log_beta=BETA)
    expected = (BETA.exp()[:, None] * ordered_masks(5)).sum(0)
    assert torch.allclose(u.keep(), expected)
    assert torch.allclose(unit(log_beta=BETA, learned=False).keep(), expected)
    spread = u.spread(u.keep(), Use("m", offset=3, block=2), 30)
    assert torch.equal(spread[:3], torch.ones(3))
    assert torch.equal(spread[27:], torch.ones(3))
    assert torch.allclose(spread[3:27], expected[list(u.steps.node_of)].repeat_interleave(2))


def test_the_unscaled_terms_are_the_weighed_kl_and_the_penalty():
    u = unit(log_beta=BETA, tail_weight=0.3, width_penalty=0.01)
    kl, penalty = u.unscaled_terms()
    assert torch.allclose(kl, 0.3 * tail_kl(BETA, u.log_prior))
    assert torch.allclose(penalty, 0.01 * (BETA.exp() * torch.arange(1, 6)).sum())
    assert list(unit(learned=False, tail_weight=0.3).unscaled_terms()) == []

    def loss(logits):
        beta = log_tails(logits).exp()
        return float((0.3 * beta * (beta.log() - u.log_prior)).sum() + 0.01 * (beta * torch.arange(1, 6)).sum())

    (kl + penalty).backward()
    assert torch.allclose(u.logits.grad, differences(loss, u.logits.detach()), atol=1e-6)


def differences(f, at, step=1e-5):
    eye = torch.eye(len(at), dtype=at.dtype) * step
    return torch.tensor([(f(at + e) - f(at - e)) / (2 * step) for e in eye], dtype=at.dtype)


def test_soft_gradients_are_those_of_finite_differences():
    """With the noise held, a soft mask is a smooth function of the logits."""
    torch.manual_seed(0)
    u = unit(log_beta=BETA, hard=False, temperature=0.7)
    x = torch.randn(4, 12, dtype=torch.double)
    noise = u.draw.noise().double()

    def loss(logits=None):
        before = u.logits.detach().clone()
        if logits is not None:
            u.logits.data = logits
        with using(draws={id(u.draw): noise}):
            value = (x * u.mask(x, USE)).sin().sum() ** 2
        u.logits.data = before
        return value

    loss().backward()
    assert torch.allclose(u.logits.grad, differences(lambda at: loss(at).item(), u.logits.detach()), atol=1e-5)


def test_straight_through_gradients_point_where_enumeration_does():
    """E f over hard masks has an exact gradient; the estimate of it is biased, but close at a low temperature."""
    torch.manual_seed(0)
    u = unit(log_beta=BETA, temperature=0.2, per_sample=True)
    gain = torch.linspace(1.0, 0.2, 12, dtype=torch.double)
    logits = u.logits.detach().clone().requires_grad_()
    masks = ordered_masks(5).double()[:, list(u.steps.node_of)]
    (log_tails(logits).exp() * (masks @ gain)).sum().backward()
    rows = 40_000
    (drawn(u, torch.zeros(rows, 12)).double() @ gain).mean().backward()
    assert torch.allclose(u.logits.grad, logits.grad, rtol=0.1, atol=0.02)


def test_a_width_masks_truncates_rescales_and_survives_the_state_dict():
    u, x = unit(log_beta=BETA), torch.zeros(2, 12)
    u.width = 3
    assert u.mask(x, USE).tolist() == [1.0] * 8 + [0.0] * 4
    assert u.draw.current is None  # nothing is drawn
    u.rescale = True
    keep = u.keep().detach()
    assert torch.allclose(u.mask(x, USE)[:8].double(), keep[[0, 0, 0, 0, 1, 1, 2, 2]], atol=1e-6)
    u.limit = 4
    other = unit()
    other.load_state_dict(u.state_dict())
    assert (other.width, other.limit, other.rescale) == (3, 4, True)
    u.width, u.rescale = 0, False
    assert torch.allclose(u.tails().exp()[:4], BETA.exp()[:4] / 0.75)
    assert u.tails()[4] == -math.inf
    with torch.no_grad():
        assert max(drawn(u, x).sum().item() for _ in range(200)) == 10
    with pytest.raises(ConversionError, match="at most 5 nodes"):
        other.load_state_dict({**u.state_dict(), "_extra_state": torch.tensor([9, 9, 0])})


def test_legacy_hands_probabilities_over_as_if_they_were_logarithms():
    torch.manual_seed(0)
    steep = log_tails(torch.full((30,), 3.0)).double()
    u = unit(64, 32, 2, log_beta=steep, legacy=True, learned=True, per_sample=True)
    kept = drawn(u, torch.zeros(40_000, 64)).sum(1)
    full = float((kept == 64).double().mean())
    assert steep.exp()[-1] > 0.2  # what is meant
    assert abs(full - 0.039) < 0.005  # what comes out
    u.logits.data.fill_(50.0)
    assert torch.allclose(u.tails(), log_tails(torch.full((30,), 5.0, dtype=torch.double)))
