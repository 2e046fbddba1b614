"""Priors: densities, checks, and the JSON round trip."""

import subprocess
import sys

import pytest
import torch

from leanbayes.config import from_dict, to_dict
from leanbayes.errors import ConfigError
from leanbayes.priors import LogUniform, Normal, Prior, ScaleMixture, StudentT

PROPER: list[Prior] = [Normal(0.5, 2.0), StudentT(df=3.0, loc=-1.0, scale=0.5), ScaleMixture(0.25, 1.0, 0.05)]


@pytest.mark.parametrize("prior", PROPER, ids=lambda p: type(p).__name__)
def test_a_proper_density_integrates_to_one(prior: Prior) -> None:
    t = torch.linspace(-12, 12, 200_001, dtype=torch.double)
    w = torch.sinh(t)  # dense about 0, far into the tails
    assert prior.proper
    assert torch.trapezoid(prior.log_prob(w).exp() * torch.cosh(t), t).item() == pytest.approx(1, abs=1e-6)


def test_densities_are_those_of_torch() -> None:
    w = torch.linspace(-3, 3, 13, dtype=torch.double)
    of = torch.distributions
    assert torch.allclose(Normal(0.5, 2.0).log_prob(w), of.Normal(0.5, 2.0).log_prob(w))
    assert torch.allclose(StudentT(3.0, -1.0, 0.5).log_prob(w), of.StudentT(3.0, -1.0, 0.5).log_prob(w))
    mixture = of.MixtureSameFamily(of.Categorical(torch.tensor([0.25, 0.75])), of.Normal(0.0, torch.tensor([1.0, 0.1])))
    assert torch.allclose(ScaleMixture(0.25, 1.0, 0.1).log_prob(w), mixture.log_prob(w))


def test_the_log_uniform_is_improper_and_has_no_scale() -> None:
    w = torch.tensor([0.1, -2.0])
    assert not LogUniform().proper
    assert torch.allclose(LogUniform().log_prob(3 * w) - LogUniform().log_prob(w), -torch.tensor(3.0).log())


@pytest.mark.parametrize("prior", [*PROPER, LogUniform()], ids=lambda p: type(p).__name__)
def test_far_tails_stay_finite_in_single_precision(prior: Prior) -> None:
    w = torch.tensor([-1e6, 1e-6, 1e6], requires_grad=True)
    value = prior.log_prob(w)
    value.sum().backward()
    assert value.isfinite().all()
    assert w.grad is not None
    assert w.grad.isfinite().all()


def test_students_t_of_tiny_df_is_finite_in_single_precision() -> None:
    # variance networks, appendix B: df = 1e-16, where z^2 / df leaves single precision from |z| = 1e11 on
    prior, double = StudentT(df=1e-16), [1e-30, 1e-12, 1e-8, 1.0, -1e12, 1e30]
    w = torch.tensor([0.0, *double], requires_grad=True)
    value = prior.log_prob(w)
    value.sum().backward()
    assert w.grad is not None
    assert w.grad.isfinite().all()
    expected = torch.distributions.StudentT(torch.tensor(1e-16, dtype=torch.double)).log_prob(w.detach().double())
    assert torch.allclose(value.double(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("prior", [*PROPER, LogUniform()], ids=lambda p: type(p).__name__)
def test_json_round_trip(prior: Prior) -> None:
    assert from_dict(to_dict(prior)) == prior


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Normal, {"std": 0.0}),
        (Normal, {"mean": float("nan")}),
        (StudentT, {"df": -1.0}),
        (StudentT, {"scale": "wide"}),
        (ScaleMixture, {"pi": 1.0}),
        (ScaleMixture, {"pi": 0.0}),
        (ScaleMixture, {"std2": 0.0}),
    ],
)
def test_bad_values_are_refused(kind: type, arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{next(iter(arguments))}"):
        kind(**arguments)


def test_importing_priors_does_not_import_torch() -> None:
    code = "import sys, leanbayes.priors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
