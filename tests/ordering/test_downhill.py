"""Downhill against quadrature, torch's Gumbel-softmax, finite differences and its own limit."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import RelaxedOneHotCategorical, kl_divergence

from leanbayes.errors import ConfigError
from leanbayes.ordering import (
    BernoulliChain,
    Downhill,
    coarser_noise,
    coarser_tails,
    exponential,
    gumbel_noise,
    log_steps,
    log_tails,
    slope,
    uniform_logits,
)

BETA = torch.tensor([0.05, 0.3, 0.1, 0.02, 0.4, 0.13], dtype=torch.double)
LINE = torch.linspace(-60, 60, 1201, dtype=torch.double)  # trapezoids converge fast where an integrand dies out


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 20.0])
@pytest.mark.parametrize("nodes", [1, 2, 1500])
def test_samples_go_downhill_from_one(temperature: float, nodes: int) -> None:
    q = Downhill(temperature, log_beta=log_tails(torch.randn(nodes - 1) * 3))
    z = q.rsample((200,))
    assert z.shape == (200, nodes)
    assert bool((z[:, 0] == 1).all())
    assert bool((z >= 0).all())
    assert bool((z.diff(dim=-1) <= 0).all())
    assert bool(q.support.check(q.rsample((50,), hard=True)).all())


def test_tail_frequencies_when_cold() -> None:
    z = Downhill(1e-3, BETA).rsample((100_000,))
    observed = z.sum(-1).round().long().bincount(minlength=7)[1:]
    assert stats.chisquare(observed.numpy(), (BETA * 100_000).numpy()).pvalue > 1e-3


def test_tail_frequencies_of_hard_samples_do_not_depend_on_temperature() -> None:
    q = Downhill(5.0, BETA)
    z = q.rsample((100_000,), hard=True)
    observed = z.sum(-1).long().bincount(minlength=7)[1:]
    assert stats.chisquare(observed.numpy(), (BETA * 100_000).numpy()).pvalue > 1e-3
    error = (z.mean(0) - q.keep).abs()
    assert bool((error <= 5 * (q.keep * (1 - q.keep) / 100_000).sqrt()).all())


def integral_of_two(q: Downhill, f: Callable[[Tensor], Tensor]) -> Tensor:
    """E f(z) for K = 2 over z_2 = sigmoid(s)."""
    steps = torch.stack((-torch.nn.functional.softplus(LINE), -torch.nn.functional.softplus(-LINE)), -1)
    z = torch.stack((torch.ones_like(LINE), LINE.sigmoid()), -1)
    return torch.trapezoid((q.log_prob_of_steps(steps) + steps.sum(-1)).exp() * f(z), LINE)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_density_integrates_to_one(temperature: float) -> None:
    two = Downhill(temperature, torch.tensor([0.3, 0.7], dtype=torch.double))
    assert float(integral_of_two(two, lambda z: z[..., 0])) == pytest.approx(1, abs=1e-9)
    # K = 3 over z_2 = sigmoid(s) and z_3 = z_2 sigmoid(t), through z itself
    three = Downhill(temperature, torch.tensor([0.2, 0.5, 0.3], dtype=torch.double), validate_args=False)
    s, t = torch.meshgrid(LINE[250:-250:4], LINE[250:-250:4], indexing="ij")
    z2, part = s.sigmoid(), t.sigmoid()
    z = torch.stack((torch.ones_like(s), z2, z2 * part), -1)
    jacobian = z2 * (1 - z2) * z2 * part * (1 - part)
    inner = torch.trapezoid(three.log_prob(z).exp() * jacobian, t[0], dim=-1)
    assert float(torch.trapezoid(inner, s[:, 0])) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_density_is_that_of_gumbel_softmax_after_a_change_of_variables(temperature: float) -> None:
    q = Downhill(temperature, BETA)
    c = torch.distributions.Dirichlet(torch.full((6,), 3.0, dtype=torch.double)).sample((64,))  # any points will do
    z = 1 - torch.nn.functional.pad(c, (1, 0))[..., :-1].cumsum(-1)  # property 1 to the letter, c_0 := 0
    there = RelaxedOneHotCategorical(torch.tensor(temperature, dtype=torch.double), probs=BETA, validate_args=False)
    jacobian = torch.autograd.functional.jacobian(lambda y: torch.cat((1 - y[:1], y[:-1] - y[1:])), z[0, 1:])
    assert float(torch.linalg.det(jacobian).abs()) == pytest.approx(1)  # (z_2..z_K) to (c_1..c_{K-1})
    assert torch.allclose(q.log_prob(z), there.log_prob(c), rtol=1e-6)
    assert torch.allclose(q.log_prob_of_steps(c.log()), there.log_prob(c), rtol=1e-9)
    noise = q.noise((64,))
    drawn = log_steps(BETA.log(), temperature, noise).exp()
    fallen = 1 - torch.nn.functional.pad(drawn, (1, 0))[..., :-1].cumsum(-1)
    assert torch.allclose(q.rsample(noise=noise), fallen, atol=1e-12)


def test_samples_follow_the_density() -> None:
    q = Downhill(0.7, torch.tensor([0.3, 0.7], dtype=torch.double))
    z2 = q.sample((20_000,))[:, 1]
    mean, square = (float(integral_of_two(q, lambda z, k=k: z[..., 1] ** k)) for k in (1, 2))  # type: ignore[misc]
    assert float(z2.mean()) == pytest.approx(mean, abs=5 * math.sqrt((square - mean**2) / 20_000))
    below = float(integral_of_two(q, lambda z: (z[..., 1] < 0.2).double()))
    assert float((z2 < 0.2).double().mean()) == pytest.approx(below, abs=5 * math.sqrt(below / 20_000) + 5e-3)


def cost(z: Tensor) -> Tensor:
    weights = torch.linspace(1, 2, z.shape[-1], dtype=z.dtype)
    return (weights * z).sum(-1).square() + torch.sin(3 * z[..., -1])


def test_the_gradient_of_an_expectation_equals_finite_differences() -> None:
    """Of the integral, with the tolerance of the sample; and of the sample itself, with common random numbers."""
    count, h, t = 40_000, 1e-4, 0.8
    logit = torch.tensor([0.4], dtype=torch.double)

    def expectation(shift: float) -> float:
        return float(integral_of_two(Downhill(t, log_beta=log_tails(logit + shift)), cost))

    wanted = (expectation(h) - expectation(-h)) / (2 * h)
    free = logit.expand(count, 1).clone().requires_grad_()
    (each,) = torch.autograd.grad(cost(Downhill(t, log_beta=log_tails(free)).rsample()).sum(), free)
    assert abs(float(each.mean()) - wanted) < 5 * float(each.std()) / math.sqrt(count)
    assert abs(wanted) > 20 * float(each.std()) / math.sqrt(count)  # so that the line above says something

    noise = gumbel_noise((2000, 6), dtype=torch.double)
    scores = BETA.log().requires_grad_()

    def mean(v: Tensor) -> Tensor:
        return cost(Downhill(t, log_beta=v.log_softmax(-1)).rsample(noise=noise)).mean()

    (found,) = torch.autograd.grad(mean(scores), scores)
    with torch.no_grad():
        differences = [(mean(scores + h * e) - mean(scores - h * e)) / (2 * h) for e in torch.eye(6).double()]
    assert torch.allclose(found, torch.stack(differences), rtol=1e-5, atol=1e-7)


def test_hard_samples_are_straight_through() -> None:
    noise = gumbel_noise((32, 6), dtype=torch.double)
    log_beta = BETA.log().requires_grad_()
    weights = torch.randn(32, 6, dtype=torch.double)
    hard, soft = (slope(log_beta, 0.7, noise, hard=h) for h in (True, False))
    assert set(hard.flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.sum(-1).long() - 1, (BETA.log() + noise).argmax(-1))
    slopes = [torch.autograd.grad((weights * z).sum(), log_beta)[0] for z in (hard, soft)]
    assert torch.equal(*slopes)
    assert slopes[0].abs().max() > 0


def test_one_draw_shared_by_layers() -> None:
    noise = gumbel_noise((16,), generator=torch.Generator().manual_seed(3))
    again = gumbel_noise((16,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(noise, again)
    q = Downhill(1.0, log_beta=log_tails(uniform_logits(16)))
    assert torch.equal(q.rsample(noise=noise, hard=True), q.rsample(noise=again, hard=True))
    over_noise = torch.func.vmap(lambda g: slope(q.log_beta, 1.0, g, hard=True))(torch.stack((noise, -noise)))
    assert torch.equal(over_noise[0], q.rsample(noise=noise, hard=True))


@pytest.mark.parametrize("nodes", [1, 5, 8, 24])
def test_noise_for_layers_of_several_sizes(nodes: int) -> None:
    noise = gumbel_noise((20_000, 24), dtype=torch.double)
    coarse = coarser_noise(noise, nodes)
    assert coarse.shape == (20_000, nodes)
    for column in coarse.T[[0, -1]]:
        assert stats.kstest(column.numpy(), stats.gumbel_r.cdf).pvalue > 1e-3
    if nodes > 1:  # still independent of each other
        assert abs(float(coarse.T.corrcoef()[0, 1])) < 5 / math.sqrt(20_000)
    if 24 % nodes == 0:  # uniform tails: the widths agree as well as they can
        fine, wide = noise.argmax(-1) + 1, coarse.argmax(-1) + 1
        assert torch.equal(wide, (fine * nodes / 24).ceil().long())
    with pytest.raises(ConfigError, match="at most 24 nodes"):
        coarser_noise(noise, 25)


@pytest.mark.parametrize("nodes", [2, 7, 14])
def test_widths_agree_under_any_tails(nodes: int) -> None:
    noise = gumbel_noise((20_000, 27), dtype=torch.double)
    beta = torch.rand(27, dtype=torch.double) ** 4 + 0.01
    beta[torch.rand(27) < 0.4] = 0
    log_beta = (beta / beta.sum()).log()
    coarse, tails = coarser_noise(noise, nodes, log_beta), coarser_tails(log_beta, nodes)
    fine, wide = (log_beta + noise).argmax(-1), (tails + coarse).argmax(-1)
    assert torch.equal(wide, fine * nodes // 27)
    assert stats.kstest(coarse[:, -1].numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_kl_of_the_limit_equals_enumeration() -> None:
    q, p = Downhill(0.5, BETA), BernoulliChain.constant(6, 0.8)
    prior = [0.8 ** (j - 1) * (0.2 if j < 6 else 1.0) for j in range(1, 7)]
    brute = sum(b * math.log(b / w) for b, w in zip(BETA.tolist(), prior, strict=True))
    assert float(kl_divergence(q, p)) == pytest.approx(brute, rel=1e-6)
    assert float(kl_divergence(q.limit, p)) == pytest.approx(brute, rel=1e-6)
    assert torch.allclose(q.limit.tails, BETA)
    assert torch.allclose(q.keep, q.limit.keep)


def test_kl_between_two_is_that_of_hard_samples_and_below_that_of_soft_ones() -> None:
    torch.manual_seed(0)
    tails = torch.randn(2, 3, 5, dtype=torch.double).log_softmax(-1)
    found = {}
    for temperature in (0.3, 1.0):
        q, p = (Downhill(temperature, log_beta=beta) for beta in tails)
        exact = kl_divergence(q, p)
        torch.testing.assert_close(exact, (tails[0].exp() * (tails[0] - tails[1])).sum(-1))  # over all masks
        noise = gumbel_noise((40_000, 3, 5), dtype=torch.double, generator=torch.Generator().manual_seed(1))
        masks = slope(tails[0], temperature, noise, hard=True)
        ratio = q.limit.log_prob(masks) - p.limit.log_prob(masks)
        assert ((ratio.mean(0) - exact).abs() < 4 * ratio.std(0) / 200).all()
        steps = log_steps(tails[0], temperature, noise)
        found[temperature] = (q.log_prob_of_steps(steps) - p.log_prob_of_steps(steps)).mean(0)
        assert (found[temperature] > exact).all()
    torch.testing.assert_close(found[0.3], found[1.0])  # sample by sample, whatever the temperature


def test_a_thousand_nodes_in_single_precision() -> None:
    logits = (uniform_logits(1200) + 10 * torch.randn(1199)).requires_grad_()
    chain = BernoulliChain(logits=logits)
    q, p = Downhill.from_chain(chain, 0.5), BernoulliChain.uniform(1200)
    wide = BernoulliChain(logits=logits.detach().double())
    exact = kl_divergence(wide, BernoulliChain(logits=p.logits.double()))
    value = kl_divergence(q, p)
    assert value.item() == pytest.approx(float(exact), rel=1e-5)
    noise = q.noise((8,))
    total = value + chain.entropy() + q.keep.sum() + q.rsample(noise=noise).square().sum()
    total = total + 1e-3 * q.log_prob_of_steps(log_steps(q.log_beta, 0.5, noise)).sum()
    assert bool(total.isfinite())
    assert bool(torch.autograd.grad(total, logits)[0].isfinite().all())
    assert bool(q.log_prob(q.rsample((4,))).isfinite().all())


def test_log_prob_of_steps_stays_exact_when_cold() -> None:
    beta, t = torch.tensor([0.2, 0.3, 0.5]), 0.02
    noise = gumbel_noise((500, 3))
    single = Downhill(t, beta).log_prob_of_steps(log_steps(beta.log(), t, noise))
    wide = Downhill(t, beta.double() / beta.double().sum())
    double = wide.log_prob_of_steps(log_steps(beta.double().log(), t, noise.double()))
    assert ((single - double).abs() / double.abs().clamp_min(1)).max() < 1e-4


def test_batches_expansion_and_a_temperature_each() -> None:
    q = Downhill(torch.tensor([0.1, 1.0, 10.0]), torch.tensor([0.2, 0.3, 0.5]))
    assert (q.batch_shape, q.event_shape) == ((3,), (3,))
    z = q.rsample((4,))
    assert z.shape == (4, 3, 3)
    wide = q.expand((2, 3))
    assert wide.rsample().shape == (2, 3, 3)
    assert torch.allclose(wide.log_prob(z[:2]), q.log_prob(z[:2]))
    each = torch.stack(
        [Downhill(t, torch.tensor([0.2, 0.3, 0.5])).log_prob(z[:, i]) for i, t in enumerate((0.1, 1.0, 10.0))]
    )
    assert torch.allclose(q.log_prob(z), each.T, rtol=1e-4)


def test_bad_arguments_are_refused() -> None:
    beta = torch.tensor([0.5, 0.5])
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="temperature: expected a finite number above 0"):
            Downhill(temperature, beta)
    with pytest.raises(ConfigError, match="sum to 1"):
        Downhill(1.0, torch.tensor([0.5, 0.6]))
    with pytest.raises(ConfigError, match="sum to 1"):
        Downhill(1.0, log_beta=torch.zeros(2))
    with pytest.raises(ConfigError, match="at least one node"):
        Downhill(1.0, torch.zeros(0))
    with pytest.raises(ConfigError, match="received"):
        Downhill(1.0, torch.tensor([math.nan, 1.0]))
    with pytest.raises(ConfigError, match="either beta or log_beta, received none"):
        Downhill(1.0)
    with pytest.raises(ConfigError, match="received both"):
        Downhill(1.0, beta, log_beta=beta.log())
    with pytest.raises(ValueError):
        Downhill(1.0, beta).log_prob(torch.tensor([0.9, 0.5]))


def test_annealing() -> None:
    values = [exponential(step, start=2.0, end=0.5, steps=100) for step in range(0, 201, 50)]
    assert values == pytest.approx([2.0, 1.0, 0.5, 0.5, 0.5])
    for wrong in ({"start": 0.0}, {"end": math.nan}, {"steps": 0}):
        with pytest.raises(ConfigError):
            exponential(0, **wrong)  # type: ignore[arg-type]
