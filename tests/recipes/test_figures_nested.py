"""The figures of nested networks: well-formed, and with what they are given."""

from xml.etree import ElementTree

import pytest
import torch

from leanbayes.recipes.figures import nested

LAYERS = {"conv2": [0.1, 0.2, 0.7], "conv3": torch.tensor([0.5, 0.5]), "_odd $name": [1.0]}


def words(drawn: str) -> str:
    return " ".join(ElementTree.fromstring(drawn).itertext())


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (
            nested.tails(LAYERS, {"uniform": [0.5, 0.5]}),
            ("conv2", "$name", "uniform", "conv2: most likely 3 of 3 nodes"),
        ),
        (nested.downhill(nested.downhill_samples(8)), ("temperature 0.1", "temperature 2", "node")),
        (nested.downhill({1.0: [[1.0, 0.5]]}), ("temperature 1",)),
    ],
)
def test_figures_say_what_they_show(drawn, expected):
    found = words(drawn)
    assert all(text in found for text in expected), found


def test_samples_are_downhill_and_colder_ones_are_steeper():
    drawn = {t: torch.tensor(z) for t, z in nested.downhill_samples(16, (0.05, 2.0), draws=20).items()}
    for z in drawn.values():
        assert (z[:, 0] == 1).all()
        assert (z.diff(dim=1) <= 1e-6).all()
    steepest = {t: float(-z.diff(dim=1).min(1).values.mean()) for t, z in drawn.items()}
    assert steepest[0.05] > 0.8 > 0.5 > steepest[2.0]
