"""Which cells, which batches, and the errors summed up: against double loops and by hand."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from leanbayes.config import from_dict, to_dict
from leanbayes.errors import ConfigError, EvaluationError, LeanBayesWarning
from leanbayes.evaluation.corruption_sweep import (
    Corruptions,
    ce,
    cells,
    corrupted,
    mce,
    reference_errors,
    relative_ce,
    relative_mce,
    summary,
)
from leanbayes.evaluation.corruptions import NAMES, SEVERITIES, corrupt, names
from leanbayes.evaluation.pixels import Pixels
from leanbayes.evaluation.result import Evaluation

# The config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("frog",)}, "did you mean 'fog'"),
        ({"names": "fog"}, "tuple"),
        ({"names": ("fog", "fog")}, "each once"),
        ({"severities": (0,)}, "from 1 to 5, received 0"),
        ({"severities": (6,)}, "from 1 to 5, received 6"),
        ({"severities": (True,)}, "from 1 to 5, received True"),
        ({"severities": ()}, "none"),
        ({"severities": [1]}, "tuple"),
        ({"limit": 0}, "limit.*or None"),
        ({"limit": True}, "limit"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Corruptions(**options)


def test_the_config_survives_json():
    config = Corruptions(names=("fog", "snow"), severities=(1, 5), limit=None, seed=3)
    assert from_dict(to_dict(config)) == config


def test_the_config_costs_no_import_of_torch():
    code = "import sys; from leanbayes.evaluation.configs import Corruptions; Corruptions(); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "scipy", "PIL"} & set(result.stdout.split())


def test_cells_are_every_corruption_at_every_severity():
    assert cells(Corruptions(), (3, 32, 32)) == list(itertools.product(NAMES, SEVERITIES))
    assert {name for name, _ in cells(Corruptions(), (1, 28, 28))} == set(names((1, 28, 28)))
    assert cells(Corruptions(("snow",), (2,)), (1, 28, 28)) == [("snow", 2)]  # asked for by name
    with pytest.raises(EvaluationError, match="1 or 3 channels"):
        cells(Corruptions(), (20,))


# The batches

IMAGES, LABELS = torch.rand(50, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(50)


def loader(size, inputs=IMAGES):
    return [(inputs[at : at + size], LABELS[at : at + size]) for at in range(0, 50, size)]


def joined(batches):
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


@pytest.mark.parametrize("limit", [1, 7, 10, 33, 50, 100, None])
def test_the_batch_size_does_not_matter(limit):
    config, kept = Corruptions(limit=limit, seed=2), min(limit or 50, 50)
    for size in (1, 10, 50):
        inputs, targets = joined(corrupted(loader(size), "gaussian_noise", 3, config, Pixels()))
        assert torch.equal(inputs, corrupt(IMAGES, "gaussian_noise", 3, seed=2)[:kept])
        assert torch.equal(targets, LABELS[:kept])


def test_no_more_is_read_than_needed():
    def endless():
        yield from loader(10)[:2]
        raise AssertionError("a batch too many was read")

    assert len(joined(corrupted(endless(), "contrast", 1, Corruptions(limit=20), Pixels()))[1]) == 20


def test_inputs_are_corrupted_as_pixels_and_returned_as_inputs():
    pixels = Pixels(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    inputs, _ = joined(corrupted(loader(20, pixels.to_inputs(IMAGES)), "snow", 4, Corruptions(), pixels))
    torch.testing.assert_close(pixels.to_pixels(inputs), corrupt(IMAGES, "snow", 4), atol=1e-5, rtol=0)


def test_the_batches_of_transformers_keep_their_form():
    batch = {"pixel_values": IMAGES, "labels": LABELS}
    ((inputs, targets),) = corrupted([batch], "fog", 1, Corruptions(limit=5), Pixels())
    assert torch.equal(inputs["pixel_values"], corrupt(IMAGES[:5], "fog", 1))
    assert targets.tolist() == [0, 1, 2, 3, 4]


def test_inputs_outside_of_pixels_are_named_by_their_index():
    spoilt = IMAGES.clone()
    spoilt[23, 0, 0, 0] = -2.0
    with pytest.raises(EvaluationError, match=r"images\[23\].*Pixels"):
        list(corrupted(loader(10, spoilt), "fog", 1, Corruptions(), Pixels()))


@pytest.mark.parametrize("inputs", [torch.rand(5, 8), (torch.rand(5, 3, 32, 32), torch.rand(5, 2))])
def test_what_is_no_image_is_refused(inputs):
    with pytest.raises(EvaluationError, match="images"):
        list(corrupted([(inputs, LABELS[:5])], "fog", 1, Corruptions(), Pixels()))


# The errors summed up


def random_errors(seed):
    rng = np.random.default_rng(seed)
    return {cell: float(rng.uniform(0.2, 0.9)) for cell in itertools.product(NAMES, SEVERITIES)}


@pytest.mark.parametrize("seed", range(5))
def test_mean_corruption_errors_agree_with_double_loops(seed):
    model, vanilla, clean, vanilla_clean = random_errors(seed), random_errors(seed + 100), 0.07, 0.11
    total = relative = 0.0
    for name in NAMES:
        own = other = 0.0
        own_clean = other_clean = 0.0
        for severity in SEVERITIES:
            own += model[name, severity]
            other += vanilla[name, severity]
            own_clean += clean
            other_clean += vanilla_clean
        total += own / other / 15
        relative += (own - own_clean) / (other - other_clean) / 15
    assert mce(model, vanilla) == pytest.approx(total, rel=1e-12)
    assert relative_mce(model, clean, vanilla, vanilla_clean) == pytest.approx(relative, rel=1e-12)


def test_an_example_by_hand():
    vanilla = {("fog", 1): 0.3, ("fog", 5): 0.5, ("snow", 1): 0.2, ("snow", 5): 0.2}
    model = {("fog", 1): 0.2, ("fog", 5): 0.4, ("snow", 1): 0.1, ("snow", 5): 0.2}
    assert ce(model, vanilla) == pytest.approx({"fog": 0.75, "snow": 0.75})
    assert mce(model, vanilla) == pytest.approx(0.75)
    # fog: (0.6 - 2 * 0.1) / (0.8 - 2 * 0.15) = 0.8; snow: (0.3 - 0.2) / (0.4 - 0.3) = 1
    assert relative_ce(model, 0.1, vanilla, 0.15) == pytest.approx({"fog": 0.8, "snow": 1.0})
    assert relative_mce(model, 0.1, vanilla, 0.15) == pytest.approx(0.9)


def test_a_model_against_itself_is_one():
    errors = random_errors(0)
    assert mce(errors, errors) == pytest.approx(1)
    assert relative_mce(errors, 0.1, errors, 0.1) == pytest.approx(1)


def test_more_in_the_reference_than_in_the_model_is_left_out():
    errors = random_errors(0)
    fog = {cell: error for cell, error in random_errors(1).items() if cell[0] == "fog"}
    assert mce(fog, errors) == pytest.approx(sum(fog.values()) / sum(errors["fog", s] for s in SEVERITIES))


def test_what_is_missing_in_the_reference_is_named():
    short = random_errors(0)
    del short["snow", 4]
    with pytest.raises(EvaluationError, match=r"snow, severity 4"):
        mce(random_errors(1), short)
    with pytest.raises(EvaluationError, match=r"snow, severity 4"):
        relative_mce(random_errors(1), 0.1, short, 0.1)


def test_a_reference_without_errors_is_no_reference():
    with pytest.raises(EvaluationError, match=r"fog: .*makes no error"):
        mce({("fog", 1): 0.1}, {("fog", 1): 0.0})
    with pytest.raises(EvaluationError, match=r"fog: .*loses nothing"):
        relative_mce({("fog", 1): 0.3, ("fog", 2): 0.3}, 0.1, {("fog", 1): 0.3, ("fog", 2): 0.3}, 0.3)
    with pytest.raises(EvaluationError, match="at least one cell"):
        mce({}, {})


# The summary


CHOSEN = tuple(itertools.product(("fog", "snow", "frost"), (1, 3, 5)))


def rows(seed, chosen=CHOSEN):
    rng = np.random.default_rng(seed)
    return [
        {
            "corruption": name,
            "severity": severity,
            "accuracy": float(rng.uniform(0.2, 0.8)),
            "nll": float(rng.uniform(0.5, 3)),
            "ece": float(rng.uniform(0, 0.3)),
            "count": 100,
        }
        for name, severity in chosen
    ]


def evaluation(seed, **metrics):
    return Evaluation("vanilla", "classification", 100, metrics, {"corruption": rows(seed)})


def test_the_summary_has_means_over_all_and_by_severity():
    found, curve = summary(rows(0), {"accuracy": 0.9, "nll": 0.3, "ece": 0.02}, None)
    assert curve == rows(0)
    for metric in ("accuracy", "nll", "ece"):
        assert found[f"corruption.{metric}"] == pytest.approx(np.mean([row[metric] for row in rows(0)]))
        for severity in (1, 3, 5):
            values = [row[metric] for row in rows(0) if row["severity"] == severity]
            assert found[f"corruption.{metric}.{severity}"] == pytest.approx(np.mean(values))
    assert found["corruption.clean_accuracy"] == 0.9
    assert "corruption.mce" not in found


def test_the_summary_against_a_reference_that_was_saved():
    vanilla = Evaluation.from_dict(evaluation(1, accuracy=0.85).to_dict())
    found, _ = summary(rows(0), {"accuracy": 0.9}, vanilla)
    own = {(row["corruption"], row["severity"]): 1 - row["accuracy"] for row in rows(0)}
    other = {(row["corruption"], row["severity"]): 1 - row["accuracy"] for row in rows(1)}
    assert found["corruption.mce"] == pytest.approx(mce(own, other))
    assert found["corruption.rmce"] == pytest.approx(relative_mce(own, 0.1, other, 0.15))


def test_the_clean_accuracy_of_the_same_data_comes_before_that_of_all():
    vanilla = evaluation(1, **{"accuracy": 0.85, "corruption.clean_accuracy": 0.95})
    assert reference_errors(vanilla, [("fog", 1)])[1] == pytest.approx(0.05)


def test_an_unsuitable_reference_is_refused():
    with pytest.raises(EvaluationError, match=r"'plain'.*corruptions=Corruptions"):
        summary(rows(0), {"accuracy": 0.9}, Evaluation("plain", "classification", 100, {"accuracy": 0.85}))
    more = rows(0, (("fog", 1), ("fog", 2)))
    with pytest.raises(EvaluationError, match=r"'vanilla'.*\(fog, severity 2\)"):
        summary(more, {"accuracy": 0.9}, evaluation(1, accuracy=0.85))
    with pytest.raises(EvaluationError, match="expected an Evaluation"):
        summary(rows(0), {"accuracy": 0.9}, "vanilla")


def test_undefined_ratios_are_nan_with_a_warning():
    perfect = [row | {"accuracy": 1.0} for row in rows(0)]
    vanilla = Evaluation("vanilla", "classification", 100, {"accuracy": 1.0}, {"corruption": perfect})
    with pytest.warns(LeanBayesWarning, match="undefined") as caught:
        found, _ = summary(rows(0), {"accuracy": 0.9}, vanilla)
    assert len(caught) == 2
    assert np.isnan(found["corruption.mce"])
    assert np.isnan(found["corruption.rmce"])


def test_no_cells_or_one_twice_are_refused():
    with pytest.raises(EvaluationError, match="at least one cell"):
        summary([], {"accuracy": 0.9}, None)
    with pytest.raises(EvaluationError, match="twice"):
        summary(rows(0) + rows(0)[:1], {"accuracy": 0.9}, None)
