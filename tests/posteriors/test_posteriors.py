"""What every posterior promises, and what each adds."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leanbayes import sampling
from leanbayes.errors import ConfigError
from leanbayes.posteriors import Gaussian, MultiplicativeGaussian, Posterior, ZeroMeanGaussian

Build = Callable[[Tensor], Posterior]
BUILDS: dict[str, Build] = {
    "gaussian": lambda w: Gaussian.from_tensor(w, std=0.3),
    "zero mean": lambda w: ZeroMeanGaussian.from_tensor(w),
    "per weight": lambda w: MultiplicativeGaussian.from_tensor(w, "weight", log_alpha=-1.0),
    "per neuron": lambda w: MultiplicativeGaussian.from_tensor(w, "neuron", log_alpha=-1.0),
    "per layer": lambda w: MultiplicativeGaussian.from_tensor(w, "layer", log_alpha=-1.0),
}


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


def weight(*shape: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    generator = torch.Generator().manual_seed(0)
    return nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))


def test_shape_moments_and_dtype(build: Build) -> None:
    w = weight(4, 3, 2)
    q = build(w)
    assert q.shape == w.shape
    assert q.dtype == w.dtype
    assert q.device == w.device
    assert q.gaussian
    for moment in (q.mean, q.std, q.variance, q.sample(), q.log_prob(w), q.snr()):
        assert moment.shape == w.shape
        assert moment.dtype == w.dtype
        assert moment.isfinite().all()
    assert torch.allclose(q.variance, q.std**2)
    assert torch.allclose(q.snr(), q.mean.abs() / q.std)
    assert torch.equal(q.mean, w if q.has_mean else torch.zeros_like(w))


def test_samples_have_the_stated_moments(build: Build) -> None:
    q, count = build(weight(3, 2)), 200_000
    torch.manual_seed(0)
    with torch.no_grad():
        draws = q.sample(torch.randn(count, 3, 2, dtype=q.dtype))
        error = q.std / count**0.5
        assert ((draws.mean(0) - q.mean).abs() < 5 * error).all()
        assert ((draws.var(0) / q.variance - 1).abs() < 5 * (2 / count) ** 0.5).all()


def test_log_prob_is_the_normal_density(build: Build) -> None:
    q = build(weight(3, 2))
    w = q.sample()
    assert torch.allclose(q.log_prob(w), torch.distributions.Normal(q.mean, q.std).log_prob(w))


def test_a_draw_is_a_function_of_the_noise(build: Build) -> None:
    q = build(weight(3, 2))
    noise = q.noise()
    assert torch.equal(q.sample(noise), q.sample(noise))
    with sampling.using(draws={id(q): noise}):
        assert torch.equal(q.sample(), q.sample(noise))
    assert not torch.equal(q.sample(), q.sample())


def test_a_generator_repeats_the_noise_on_the_cpu(build: Build) -> None:
    q = build(weight(3, 2))
    first, again = (sampling.noise_of(q, seed=1, number=2, sample=3) for _ in range(2))
    assert torch.equal(first, again)
    assert first.dtype == q.dtype
    assert q.to("meta").noise(torch.Generator()).device == torch.device("cpu")
    assert q.noise().is_meta


def test_every_parameter_gets_a_gradient(build: Build) -> None:
    q = build(weight(3, 2))
    torch.autograd.gradcheck(lambda *_: q.sample(torch.ones(3, 2, dtype=q.dtype)), tuple(q.parameters()))


def test_vmap_over_the_noise_equals_a_loop(build: Build) -> None:
    q = build(weight(3, 2))
    noise = torch.randn(5, 3, 2, dtype=q.dtype)
    assert torch.allclose(torch.func.vmap(q.sample)(noise), torch.stack([q.sample(n) for n in noise]))


def test_it_moves_copies_and_reloads_like_any_module(build: Build) -> None:
    q = build(weight(3, 2, dtype=torch.float32))
    noise = q.noise()
    twin = copy.deepcopy(q)
    assert torch.equal(twin.sample(noise), q.sample(noise))
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert not torch.equal(twin.sample(noise), q.sample(noise))
    twin.load_state_dict(q.state_dict())
    assert torch.equal(twin.sample(noise), q.sample(noise))
    assert twin.double().sample().dtype == torch.float64
    assert twin.to(torch.bfloat16).sample().dtype == torch.bfloat16
    assert list(sampling.sites(nn.Sequential(q, q, twin))) == ["0", "2"]


def test_it_is_built_on_the_meta_device(build: Build) -> None:
    q = build(nn.Parameter(torch.empty(3, 2, device="meta")))
    assert q.sample().is_meta
    assert q.std.shape == (3, 2)


def test_it_compiles_as_one_graph(build: Build) -> None:
    q = build(weight(3, 2))
    noise = q.noise()
    compiled = torch.compile(lambda n: (q.sample(n), q.sample(), q.log_prob(n)), backend="aot_eager", fullgraph=True)
    given, fresh, _ = compiled(noise)
    assert torch.allclose(given, q.sample(noise))
    assert fresh.shape == q.shape


@pytest.mark.parametrize("name", [n for n in BUILDS if n != "zero mean"])
def test_the_mean_keeps_what_the_weight_was(name: str) -> None:
    w = weight(3, 2)
    for frozen in (False, True):
        w.requires_grad_(not frozen)
        q = BUILDS[name](w)
        loc, spread = q.parameters()
        assert loc.requires_grad is not frozen
        assert spread.requires_grad
        assert torch.equal(loc, w)
        assert loc.data_ptr() != w.data_ptr()


def test_requires_grad_can_be_overridden() -> None:
    assert Gaussian.from_tensor(torch.zeros(2), requires_grad=True).loc.requires_grad
    assert not MultiplicativeGaussian.from_tensor(weight(2), requires_grad=False).loc.requires_grad


def test_the_zero_mean_gaussian_has_no_mean() -> None:
    w = torch.tensor([0.0, -2.0])
    q = ZeroMeanGaussian.from_tensor(w)
    assert not q.has_mean
    assert not q.mean.requires_grad
    assert torch.equal(q.snr(), torch.zeros(2))
    assert torch.allclose(q.std, torch.tensor([1e-8, 2.0]), rtol=1e-5)
    assert ZeroMeanGaussian.from_tensor(w.half()).std.isfinite().all()
    swapped = ZeroMeanGaussian.from_tensor(w, std=Gaussian.from_tensor(w, std=0.25).std)
    assert torch.allclose(swapped.std, torch.full((2,), 0.25))


@pytest.mark.parametrize(("granularity", "shape"), [("weight", (4, 3, 2)), ("neuron", (4, 1, 1)), ("layer", (1, 1, 1))])
def test_alpha_has_the_asked_granularity(granularity: str, shape: tuple[int, ...]) -> None:
    q = MultiplicativeGaussian.from_tensor(weight(4, 3, 2), granularity, log_alpha=2.0)  # type: ignore[arg-type]
    assert q.log_alpha.shape == shape
    assert torch.allclose(q.std, torch.e * q.loc.abs())


def test_multiplicative_noise_has_finite_gradients_at_zero() -> None:
    q = MultiplicativeGaussian.from_tensor(nn.Parameter(torch.zeros(3)), log_alpha=1.0)
    total = q.std + q.variance + q.sample() + q.snr() + q.log_prob(torch.zeros(3))
    total.sum().backward()
    for parameter in q.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(torch.zeros(2), torch.zeros(3)), "shape of loc"),
        (lambda: MultiplicativeGaussian(torch.zeros(2), torch.zeros(3)), "broadcasts to"),
        (lambda: MultiplicativeGaussian(torch.zeros(2), torch.zeros(2, 2)), "broadcasts to"),
        (lambda: MultiplicativeGaussian.from_tensor(torch.zeros(2), "filter"), "weight, neuron, layer"),
        (lambda: Gaussian.from_tensor(torch.zeros(2, dtype=torch.long)), "floating-point"),
        (lambda: ZeroMeanGaussian.from_tensor(torch.zeros(2, dtype=torch.long)), "floating-point"),
    ],
)
def test_bad_input_is_refused(make: Callable[[], Posterior], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
