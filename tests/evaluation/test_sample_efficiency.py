"""What balanced samples are worth, where the answer is known."""

import pytest
import torch

from leanbayes.evaluation.sample_efficiency import measures, worth


def test_noise_of_a_quarter_of_the_variance_is_worth_four_times_the_samples():
    exact = torch.full((200, 2), 0.5)

    def said(samples, seed, balanced):
        noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(1000 * samples + seed))
        noise = 0.01 * noise / (samples * (4 if balanced else 1)) ** 0.5
        return exact + torch.cat([noise, -noise], 1)

    asked = {"predictive mean": lambda probs: probs}
    found = worth(said, exact, asked, samples=20, repeats=30, independent=(10, 40, 160))["predictive mean"]
    assert found["worth"] == pytest.approx(80, rel=0.1)
    assert found["slope"] == pytest.approx(-1, abs=0.05)
    assert len(found["each"]["balanced"]) == 30


def test_measures_are_what_they_are_called():
    probs, labels = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])
    found = {name: measure(probs) for name, measure in measures(labels).items()}
    assert found["NLL"].item() == pytest.approx(-(torch.tensor([0.9, 0.2]).log().mean().item()))
    assert found["ECE"].item() == pytest.approx((0.1 + 0.8) / 2)
    assert torch.equal(found["predictive mean"], probs)


def test_nothing_is_read_off_where_more_samples_do_not_help():
    exact = torch.full((50, 2), 0.5)

    def said(samples, seed, balanced):
        noise = torch.randn(50, 1, generator=torch.Generator().manual_seed(1000 * samples + seed))
        return exact + 0.01 * torch.cat([noise, -noise], 1) * (2 if balanced else 1)

    found = worth(said, exact, {"mean": lambda probs: probs}, samples=20, repeats=5, independent=(10, 40))["mean"]
    assert (found["worth"], found["at_least"]) == (None, False)


def test_samples_that_are_exact_are_a_bound():
    exact = torch.full((50, 2), 0.5)
    found = worth(
        lambda samples, seed, balanced: exact + (0 if balanced else 0.01 / samples),
        exact, {"mean": lambda probs: probs}, samples=20, repeats=2, independent=(10, 40),
    )["mean"]  # fmt: skip
    assert found["at_least"]


def test_beyond_what_was_tried_it_is_a_bound():
    exact = torch.full((50, 2), 0.5)

    def said(samples, seed, balanced):
        noise = torch.randn(50, 1, generator=torch.Generator().manual_seed(1000 * samples + seed))
        return exact + (1e-6 if balanced else 0.01 / samples**0.5) * torch.cat([noise, -noise], 1)

    found = worth(said, exact, {"mean": lambda probs: probs}, samples=20, repeats=5, independent=(10, 40))["mean"]
    assert (found["worth"], found["at_least"]) == (40.0, True)
