"""kl(q, p) of every pair against Monte Carlo, its gradients and limits, and its sum over a model."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from leanbayes.errors import ConfigError
from leanbayes.kl import kl, kl_kind, kl_sum
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian, Posterior, ZeroMeanGaussian
from leanbayes.priors import LogUniform, Normal, Prior, ScaleMixture, StudentT

COUNT = 1_000_000
NAMES = ["molchanov", "kingma", "cui", "exact"]
PRIORS: dict[str, Prior] = {
    "Normal": Normal(0.2, 0.7),
    "StudentT": StudentT(df=2.0, scale=0.5),
    "ScaleMixture": ScaleMixture(0.5, 1.0, 0.1),
}
POSTERIORS: dict[str, Callable[[Tensor], Posterior]] = {
    "Gaussian": lambda w: Gaussian.from_tensor(w, std=0.4, requires_grad=True),
    "ZeroMean": lambda w: ZeroMeanGaussian.from_tensor(w, std=0.4),
    "Multiplicative": lambda w: MultiplicativeGaussian.from_tensor(w, "layer", log_alpha=-1.0, requires_grad=True),
}


def build(name: str, *values: float, repeat: int = 0) -> Posterior:
    w = torch.tensor(values, dtype=torch.double)
    return POSTERIORS[name](w.expand(repeat, -1) if repeat else w)


@torch.no_grad()
def sampled(q: Posterior, p: Prior, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The mean of log q - log p over a million draws, and its standard error, elementwise."""
    generator = torch.Generator().manual_seed(seed)
    w = q.sample(torch.randn(COUNT, *q.shape, generator=generator, dtype=q.dtype))
    terms = q.log_prob(w) - p.log_prob(w)
    return terms.mean(0), terms.std(0) / COUNT**0.5


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("prior", PRIORS)
def test_every_proper_pair_agrees_with_a_million_draws(posterior: str, prior: str) -> None:
    p, q = PRIORS[prior], build(posterior, 0.5, -1.5)
    expected, error = sampled(q, p)
    if kl_kind(q, p) == "exact":
        assert ((kl(q, p) - expected).abs() < 4.5 * error).all()
        return
    assert kl_kind(q, p) == "monte carlo"
    torch.manual_seed(1)
    terms = kl(build(posterior, 0.5, -1.5, repeat=100_000), p, samples=2).detach()
    both = (error**2 + terms.var(0) / len(terms)).sqrt()
    assert ((terms.mean(0) - expected).abs() < 4.5 * both).all()


@pytest.mark.parametrize("posterior", ["Gaussian", "Multiplicative"])
def test_the_log_uniform_pair_agrees_up_to_a_constant(posterior: str) -> None:
    def at(log_alpha: float) -> Posterior:
        w, std = torch.tensor([0.5, -1.5], dtype=torch.double), torch.tensor(log_alpha / 2).exp()
        if posterior == "Gaussian":
            return Gaussian.from_tensor(w, std=std * w.abs())
        return MultiplicativeGaussian.from_tensor(w, log_alpha=log_alpha)

    values = {x: (*sampled(at(x), LogUniform()), kl(at(x), LogUniform(), "exact")) for x in (-3.0, 0.0, 3.0)}
    for a, b in [(-3.0, 0.0), (0.0, 3.0)]:
        (mean_a, error_a, exact_a), (mean_b, error_b, exact_b) = values[a], values[b]
        error = error_a + error_b  # the draws are shared, so the errors may add up
        assert ((mean_a - mean_b - (exact_a - exact_b)).abs() < 4 * error).all()
        near = kl(at(a), LogUniform()) - kl(at(b), LogUniform())
        assert (near - (exact_a - exact_b)).abs().max() < 2 * 0.0095


def test_the_zero_mean_pair_is_a_constant_whatever_the_spread() -> None:
    wide, narrow = (ZeroMeanGaussian.from_tensor(torch.zeros(2, dtype=torch.double), std=s) for s in (1.0, 1e-3))
    (a, error_a), (b, error_b) = sampled(wide, LogUniform()), sampled(narrow, LogUniform())
    assert ((a - b).abs() < 4 * (error_a + error_b)).all()
    for name in (None, *NAMES, "monte carlo"):
        assert torch.equal(kl(wide, LogUniform(), name), torch.zeros(2))
        assert kl_kind(wide, LogUniform(), name) == "up to a constant"
    # It is the limit of the Gaussian pair, and continuous with it.
    assert kl(Gaussian.from_tensor(torch.full((2,), 1e-6), std=1.0), LogUniform(), "exact").max() < 1e-11


def test_students_t_of_tiny_df_behaves_as_the_log_uniform() -> None:
    # Variance networks, appendix B, in its corrected form: equal up to a constant that depends on neither parameter.
    p, offsets = StudentT(df=1e-16), []
    for log_alpha, theta in [(-2.0, 0.5), (1.0, 0.5), (1.0, 2.0)]:
        torch.manual_seed(0)
        q = MultiplicativeGaussian.from_tensor(torch.full((500_000,), theta).double(), "layer", log_alpha=log_alpha)
        terms = kl(q, p).detach()
        offsets.append(terms.mean() - kl(q, LogUniform(), "exact")[0])
    assert (torch.stack(offsets) - offsets[0]).abs().max() < 5e-3


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("prior", [StudentT(2.0, 0.3, 0.5), StudentT(1e-16), StudentT(100.0, scale=1e-3)], ids=repr)
def test_the_exact_students_pair_is_what_its_sampled_one_averages_to(posterior: str, prior: StudentT) -> None:
    q = build(posterior, 0.5, -1.5)
    expected, error = sampled(q, prior)
    assert kl_kind(q, prior, "exact") == "exact"
    assert ((kl(q, prior, "exact") - expected).abs() < 4.5 * error).all()
    torch.manual_seed(1)
    terms = kl(build(posterior, 0.5, -1.5, repeat=100_000), prior, "monte carlo").detach()
    assert ((terms.mean(0) - kl(q, prior, "exact")).abs() < 4.5 * terms.std(0) / 100_000**0.5).all()
    single = POSTERIORS[posterior](torch.tensor([0.5, -1.5]))
    assert torch.allclose(kl(single, prior, "exact").double(), kl(q, prior, "exact"), rtol=2e-6)


def test_the_exact_students_pair_is_the_log_uniform_one_in_the_limit() -> None:
    # Variance networks, equation 27: they differ by one constant, whatever theta and alpha; and so do their slopes.
    p, offsets = StudentT(df=1e-16), []
    for log_alpha in (-8.0, -2.0, 1.0, 9.0):
        for theta in (1e-3, 0.5, 40.0):
            q = MultiplicativeGaussian.from_tensor(torch.full((3,), theta), "layer", log_alpha, requires_grad=True)
            exact, limit = kl(q, p, "exact"), kl(q, LogUniform(), "exact")
            (slope,) = torch.autograd.grad(exact.sum(), q.log_alpha)
            (other,) = torch.autograd.grad(limit.sum(), q.log_alpha)
            assert torch.allclose(slope, other, rtol=1e-3, atol=1e-6)
            offsets.append((exact - limit).mean())
    assert (torch.stack(offsets) - offsets[0]).abs().max() < 2e-5


def test_the_exact_students_pair_survives_weights_of_zero_and_half_precision() -> None:
    for w in (torch.zeros(3), torch.tensor([0.0, 1e-30, 1.0])):
        q = MultiplicativeGaussian.from_tensor(w, "layer", requires_grad=True)
        value = kl(q, StudentT(1e-16), "exact")
        assert value.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(value.sum(), list(q.parameters())))
    half = MultiplicativeGaussian.from_tensor(torch.ones(3, dtype=torch.bfloat16), "layer")
    assert kl(half, StudentT(1e-16), "exact").dtype == torch.bfloat16
    assert kl(half, StudentT(1e-16), "exact").float().mean().item() == pytest.approx(
        kl(half.float(), StudentT(1e-16), "exact").mean().item(), rel=0.01
    )


@pytest.mark.parametrize("posterior", ["Gaussian", "Multiplicative"])
@pytest.mark.parametrize("log_alpha", [-6.0, -1.0, 2.0, 12.0])
def test_equation_nine_averages_to_the_exact_log_uniform_kl(posterior: str, log_alpha: float) -> None:
    w = torch.tensor([0.5, -1.5], dtype=torch.double).expand(200_000, -1)
    if posterior == "Gaussian":
        q: Posterior = Gaussian.from_tensor(w, std=torch.tensor(log_alpha / 2).exp() * w.abs())
    else:
        q = MultiplicativeGaussian.from_tensor(w, "layer", log_alpha=log_alpha)
    assert kl_kind(q, LogUniform(), "monte carlo") == "monte carlo"
    terms = kl(q, LogUniform(), "monte carlo").detach()
    exact = kl(q, LogUniform(), "exact").detach()
    assert ((terms.mean(0) - exact[0]).abs() < 4.5 * terms.std(0) / 200_000**0.5).all()


WITH_GRADIENT = [(q, p) for q in POSTERIORS for p in PRIORS]
WITH_GRADIENT += [(q, name) for q in ("Gaussian", "Multiplicative") for name in (*NAMES, "monte carlo")]
WITH_GRADIENT += [(q, "exact StudentT") for q in POSTERIORS]  # for ZeroMean the log-uniform ones are constants


@pytest.mark.parametrize(("posterior", "prior"), WITH_GRADIENT)
def test_gradients(posterior: str, prior: str) -> None:
    q = build(posterior, 0.5, -1.5)

    def value(*_: Tensor) -> Tensor:
        torch.manual_seed(0)
        if prior == "exact StudentT":
            return kl(q, PRIORS["StudentT"], "exact")
        return kl(q, PRIORS[prior]) if prior in PRIORS else kl(q, LogUniform(), prior)

    assert torch.autograd.gradcheck(value, tuple(q.parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_the_log_uniform_pair_is_stable_as_the_mean_vanishes(name: str) -> None:
    q = Gaussian.from_tensor(torch.tensor([0.0, 1e-38, 1e-18, 1e-9, 1e-3]), std=0.1, requires_grad=True)
    value = kl(q, LogUniform(), name)
    value.sum().backward()
    assert (value[0] - value[:4]).abs().max() < 1e-6
    for parameter in q.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    if name == "exact":  # KL = mean^2 / (2 std^2) + ...
        assert q.loc.grad is not None
        assert torch.allclose(q.loc.grad, q.loc / q.std**2, rtol=1e-3)


def test_a_gaussian_is_the_multiplicative_one_of_the_same_alpha() -> None:
    w = torch.tensor([0.5, -1.5], dtype=torch.double)
    q = Gaussian.from_tensor(w, std=0.4)
    r = MultiplicativeGaussian(w, 2 * (q.std / w.abs()).log().detach())
    for name in NAMES:
        assert torch.allclose(kl(q, LogUniform(), name), kl(r, LogUniform(), name))
    assert torch.allclose(kl(q, Normal()), kl(r, Normal()))


def test_the_kl_is_zero_at_the_prior_and_finite_for_a_weight_of_zero() -> None:
    assert kl(Gaussian.from_tensor(torch.full((3,), 0.2), std=0.7), Normal(0.2, 0.7)).abs().max() < 1e-6
    q = MultiplicativeGaussian.from_tensor(torch.zeros(3), requires_grad=True)
    for p in (*PRIORS.values(), LogUniform()):
        value = kl(q, p).sum()
        assert value.isfinite()
        assert all(
            g.isfinite().all()
            for g in torch.autograd.grad(value, list(q.parameters()), allow_unused=True)
            if g is not None
        )


@pytest.mark.parametrize("granularity", ["weight", "neuron", "layer"])
def test_a_shared_alpha_is_counted_for_every_weight(granularity: str) -> None:
    q = MultiplicativeGaussian.from_tensor(torch.ones(4, 3, 2), granularity, log_alpha=0.5)  # type: ignore[arg-type]
    value = kl(q, LogUniform())
    assert value.shape == (4, 3, 2)
    value.sum().backward()
    assert q.log_alpha.grad is not None
    one = MultiplicativeGaussian.from_tensor(torch.ones(1), log_alpha=0.5)
    kl(one, LogUniform()).sum().backward()
    assert one.log_alpha.grad is not None
    assert torch.allclose(q.log_alpha.grad.sum(), 24 * one.log_alpha.grad.sum())


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_a_pruned_weight_costs_nothing(posterior: str) -> None:
    q, twin = build(posterior, 0.5, -1.5), build(posterior, 0.5, -1.5)
    q.keep = torch.tensor([True, False])
    for p in (*PRIORS.values(), LogUniform()):
        torch.manual_seed(0)
        value = kl(q, p)
        torch.manual_seed(0)
        assert torch.equal(value, torch.stack([kl(twin, p)[0], torch.zeros((), dtype=torch.double)]))
        if value.requires_grad:
            grads = torch.autograd.grad(value.sum(), list(q.parameters()), allow_unused=True)
            assert all(g.isfinite().all() for g in grads if g is not None)


def test_mirrored_draws_reduce_the_variance() -> None:
    q = Gaussian.from_tensor(torch.full((20_000,), 0.5), std=0.01)
    torch.manual_seed(0)
    with torch.no_grad():
        w = q.sample()
        plain = q.log_prob(w) - StudentT().log_prob(w)
        assert kl(q, StudentT()).std() < 1e-2 * plain.std()


def test_a_posterior_of_ones_own_falls_back_on_sampling() -> None:
    class Laplace(Posterior):
        def __init__(self) -> None:
            super().__init__()
            self.loc = nn.Parameter(torch.zeros(50_000, dtype=torch.double))

        @property
        def like(self) -> Tensor:
            return self.loc

        def noise(self, generator: torch.Generator | None = None) -> Tensor:
            return torch.rand(self.shape, generator=generator, dtype=self.dtype) - 0.5

        def sample(self, noise: Tensor | None = None) -> Tensor:
            noise = self.noise() if noise is None else noise
            return self.loc - noise.sign() * torch.log1p(-2 * noise.abs())

        def log_prob(self, w: Tensor) -> Tensor:
            return -(w - self.loc).abs() - torch.tensor(2.0).log()

    torch.manual_seed(0)
    q = Laplace()
    assert kl_kind(q, Normal()) == "monte carlo"
    # -(1 + log 2) + log(2 pi) / 2 + E[w^2] / 2, E[w^2] = 2
    assert kl(q, Normal(), samples=4).mean().item() == pytest.approx(0.2258, abs=0.02)


def test_kinds() -> None:
    q = build("Gaussian", 1.0)
    assert kl_kind(q, Normal()) == "exact"
    assert kl_kind(q, StudentT()) == "monte carlo"
    assert kl_kind(q, StudentT(), "exact") == "exact"
    assert kl_kind(q, LogUniform()) == kl_kind(q, LogUniform(), "molchanov") == "approximation"
    assert kl_kind(q, LogUniform(), "exact") == "up to a constant"
    assert kl_kind(q, LogUniform(), "monte carlo") == "monte carlo"


def test_what_is_unknown_is_refused_with_a_list() -> None:
    q = build("Gaussian", 1.0)
    with pytest.raises(ConfigError, match=r"'molchanov', 'kingma', 'cui', 'exact'.*'magic'"):
        kl(q, LogUniform(), "magic")
    with pytest.raises(ConfigError, match="among 'exact', received 'cui'"):
        kl(q, Normal(), "cui")
    with pytest.raises(ConfigError, match=r"known: .*\(FactorisedGaussian, Normal\)"):
        kl(q, torch.distributions.Normal(0.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="samples"):
        kl(q, StudentT(), samples=0)


def test_it_compiles_as_one_graph() -> None:
    q = build("Multiplicative", 0.5, -1.5)

    def total() -> Tensor:
        return kl(q, LogUniform(), "exact").sum() + kl(q, LogUniform()).sum() + kl(q, Normal()).sum()

    expected = torch.autograd.grad(total(), list(q.parameters()))
    compiled = torch.autograd.grad(torch.compile(total, backend="aot_eager", fullgraph=True)(), list(q.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(expected, compiled, strict=True))


class Layer(nn.Module):
    """The least a Bayesian layer owes to `kl_sum`."""

    def __init__(self, posterior: Posterior, scale: float = 1.0) -> None:
        super().__init__()
        self.posterior, self.scale, self.asked = posterior, scale, 0

    def kl_terms(self) -> Iterator[tuple[Posterior, Callable[[], Tensor]]]:
        yield self.posterior, self.term

    def term(self) -> Tensor:
        self.asked += 1
        return self.scale * kl(self.posterior, Normal()).sum()


def test_the_sum_counts_a_tied_posterior_once() -> None:
    q, r = (Gaussian.from_tensor(torch.full((3,), m), std=1.0, requires_grad=True) for m in (1.0, 2.0))
    one, tied = Layer(q), Layer(q)
    model = nn.Sequential(one, nn.Linear(2, 2), nn.Sequential(tied, one, Layer(r, scale=0.5)))
    total = kl_sum(model)
    assert (one.asked, tied.asked) == (1, 0)
    assert total.item() == pytest.approx(3 * 0.5 + 0.5 * 3 * 2.0)
    total.backward()
    assert torch.allclose(q.loc.grad, q.loc)  # type: ignore[arg-type]


def test_the_sum_is_a_scalar_of_at_least_single_precision() -> None:
    assert kl_sum(nn.Identity()).item() == 0
    assert kl_sum(nn.Linear(2, 2, device="meta")).is_meta
    q = Gaussian.from_tensor(torch.ones(3), std=1.0)
    for dtype, expected in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        total = kl_sum(Layer(q).to(dtype))
        assert total.dtype == expected
        assert total.shape == ()
