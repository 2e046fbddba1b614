"""Sampled masks against those of several experts: double loops, exact cases, and simulations whose answer is known."""

import itertools
import math

import numpy as np
import pytest
import torch

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import dice, diversity, ged, hungarian_iou, pixel_calibration, variance_correlation
from leanbayes.evaluation.metrics import segmentation


def random_masks(seed, *shape, density=0.4):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


def distance(a, b):
    union = int((a | b).sum())
    return 1 - int((a & b).sum()) / union if union else 0.0


def loops(samples, annotations, unbiased):
    """The definition, a pair at a time."""

    def within(masks):
        pairs = [(i, j) for i in range(len(masks)) for j in range(len(masks)) if not unbiased or i != j]
        return sum(distance(masks[i], masks[j]) for i, j in pairs) / len(pairs)

    between = sum(distance(s, a) for s in samples for a in annotations) / (len(samples) * len(annotations))
    return 2 * between - within(samples) - within(annotations)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize(("samples", "annotations", "density"), [(5, 4, 0.4), (2, 3, 0.02), (16, 2, 0.97)])
def test_ged_equals_a_double_loop(samples, annotations, density, unbiased):
    s, a = random_masks(0, 6, samples, 7, 5, density=density), random_masks(1, 6, annotations, 7, 5, density=density)
    wanted = [loops(s[i], a[i], unbiased) for i in range(6)]
    assert ged(s, a, unbiased=unbiased).tolist() == pytest.approx(wanted, abs=1e-12)
    assert ged(s[2], a[2], unbiased=unbiased).item() == pytest.approx(wanted[2], abs=1e-12)
    assert ged(s.numpy(), a.numpy().astype(np.float32), unbiased=unbiased).tolist() == pytest.approx(wanted, abs=1e-12)


def test_blocks_of_images_do_not_change_the_answer(monkeypatch):
    s, a = random_masks(2, 9, 3, 6, 6), random_masks(3, 9, 4, 6, 6)
    whole = ged(s, a)
    monkeypatch.setattr(segmentation, "AT_ONCE", 2 * 7 * 36)
    assert torch.equal(ged(s, a), whole)


def test_identical_sets_are_at_distance_zero_whatever_their_order():
    masks = random_masks(4, 3, 4, 6, 6)
    assert ged(masks, masks.flip(1)).tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert bool((ged(masks, masks, unbiased=True) < 0).all())  # which leaves out what makes it zero
    assert ged(masks, masks.repeat(1, 3, 1, 1)).tolist() == pytest.approx([0, 0, 0], abs=1e-12)


def test_cases_made_by_hand():
    left, right, none = (torch.tensor([[row]]) for row in ([1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]))
    half = torch.cat([left, right])
    assert ged(left, right).item() == 2
    assert ged(none, none).item() == 0
    assert ged(none, left).item() == 2
    assert ged(left, half).item() == 2 * 0.5 - 0 - 0.5
    assert ged(half, half, unbiased=True).item() == 2 * 0.5 - 1 - 1
    assert ged(left, half, unbiased=True, exhaustive=True).item() == 2 * 0.5 - 0 - 1
    assert diversity(torch.cat([left, right, none, none])).item() == pytest.approx(5 / 6)
    assert hungarian_iou(half, torch.cat([right, left])).item() == 1
    assert hungarian_iou(torch.cat([left, none]), torch.cat([none, right])).item() == 0.5
    assert dice(none[0], torch.cat([none, left])).item() == 0.5
    assert dice(torch.tensor([[1, 1, 1, 0]]), left).item() == pytest.approx(4 / 5)


def test_several_classes_are_averaged_without_the_background():
    generator = torch.Generator().manual_seed(0)
    s, a = (torch.randint(4, (5, n, 6, 6), generator=generator) for n in (3, 2))
    for metric in (ged, hungarian_iou):
        one = metric(s, a, num_classes=4)
        assert one.shape == (5,)
    apart = [ged(s == c, a == c, unbiased=True) for c in (1, 2, 3)]
    assert torch.allclose(ged(s, a, num_classes=4, unbiased=True), torch.stack(apart).mean(0))
    apart = [dice(s[:, 0] == c, a == c) for c in (1, 2, 3)]
    assert torch.allclose(dice(s[:, 0], a, num_classes=4), torch.stack(apart).mean(0))


def test_matching_equals_the_best_of_all_permutations():
    s, a = random_masks(5, 4, 4, 5, 5), random_masks(6, 4, 2, 5, 5)
    found = hungarian_iou(s, a)
    for i in range(4):
        twice = a[i].repeat_interleave(2, 0)
        ious = [[1 - distance(s[i][row], twice[k]) for k in range(4)] for row in range(4)]
        best = max(sum(ious[r][c] for r, c in enumerate(p)) for p in itertools.permutations(range(4))) / 4
        assert found[i].item() == pytest.approx(best, abs=1e-12)


def population(seed):
    """Four masks, and how likely the model and the experts are to draw each."""
    rng = np.random.default_rng(seed)
    masks = rng.random((4, 6, 6)) < 0.5
    masks[3] = False
    p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
    d = np.array([[distance(torch.tensor(a), torch.tensor(b)) for b in masks] for a in masks])
    return rng, masks, p, q, d


@pytest.mark.parametrize("seed", range(3))
def test_the_u_statistic_is_unbiased_and_the_plug_in_off_by_what_is_documented(seed):
    rng, masks, p, q, d = population(seed)
    exact, own, experts = 2 * p @ d @ q - p @ d @ p - q @ d @ q, p @ d @ p, q @ d @ q
    n, samples, annotations = 4000, 3, 2
    s, a = masks[rng.choice(4, (n, samples), p=p)], masks[rng.choice(4, (n, annotations), p=q)]
    for unbiased, wanted in ((True, exact), (False, exact + own / samples + experts / annotations)):
        found = ged(s, a, unbiased=unbiased)
        error = found.std().item() / math.sqrt(n)
        assert found.mean().item() == pytest.approx(wanted, abs=4.5 * error)  # beyond it: 7 in a million
        assert abs(wanted - exact) > 20 * error or unbiased
    found = diversity(s)
    assert found.mean().item() == pytest.approx(own, abs=4.5 * found.std().item() / math.sqrt(n))


def test_of_all_answers_of_a_model_the_own_term_is_exact():
    rng, masks, _, q, d = population(3)
    p = np.full(4, 0.25)
    a = masks[rng.choice(4, (4000, 3), p=q)]
    members = np.broadcast_to(masks, (4000, 4, 6, 6))
    exact = 2 * p @ d @ q - p @ d @ p - q @ d @ q
    found = ged(members, a, unbiased=True, exhaustive=True)
    error = found.std().item() / math.sqrt(4000)
    assert found.mean().item() == pytest.approx(exact, abs=4.5 * error)
    assert ged(members, a, unbiased=True).mean().item() < exact - 20 * error  # members are no independent draws


def test_calibrated_pixels_have_no_error_and_others_the_gap():
    probs = torch.linspace(0.025, 0.975, 20).repeat(1, 4000, 1)
    marked = torch.rand((4, 4000, 20), generator=torch.Generator().manual_seed(0)) < probs[0]
    curve = pixel_calibration(probs, marked.unsqueeze(0))
    assert sum(curve.count) == probs.numel()
    assert curve.mce() < 4.5 * 0.5 / math.sqrt(4 * 4000)
    assert curve.accuracy[3] == pytest.approx(marked[..., 3].double().mean().item(), abs=1e-12)
    assert pixel_calibration(torch.full((1, 1, 100), 0.6), torch.ones(1, 1, 1, 100)).ece() == pytest.approx(0.4)


def test_correlation_of_variances_equals_numpy():
    s, a = torch.rand(3, 6, 5, 5, generator=torch.Generator().manual_seed(0)), random_masks(1, 3, 4, 5, 5)
    x, y = s.double().numpy().var(1).ravel(), a.double().numpy().var(1).ravel()
    assert variance_correlation(s, a) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
    assert variance_correlation(s[0], a[0]) == pytest.approx(np.corrcoef(x[:25], y[:25])[0, 1], abs=1e-12)
    assert math.isnan(variance_correlation(s, a[:, :1]))
    assert math.isnan(variance_correlation(torch.full((3, 2, 5, 5), 0.1), a))


GOOD = torch.zeros(2, 3, 4, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ged(GOOD, GOOD[:, :0]), "at least one mask"),
        (lambda: ged(GOOD[:, :0], GOOD), "at least one mask"),
        (lambda: ged(GOOD, GOOD[:1]), "the images of the other masks"),
        (lambda: ged(GOOD, GOOD[..., :3]), "the images of the other masks"),
        (lambda: ged(GOOD[0], GOOD), "the images of the other masks"),
        (lambda: ged(GOOD[..., 0, 0], GOOD[..., 0, 0]), "expected masks"),
        (lambda: ged(GOOD.float() + 0.3, GOOD), "for example 0.3; threshold probabilities"),
        (lambda: ged(GOOD, GOOD.long() + 2), "from 0 to 1, for example 2"),
        (lambda: ged(GOOD, GOOD.long() + 3, num_classes=3), "from 0 to 2, for example 3"),
        (lambda: ged(GOOD.float() * math.nan, GOOD), "for example nan"),
        (lambda: ged(GOOD, GOOD, num_classes=1), "num_classes"),
        (lambda: ged("masks", GOOD), "samples: expected a torch tensor"),
        (lambda: ged(GOOD[:, :1], GOOD, unbiased=True), "exhaustive=True"),
        (lambda: ged(GOOD, GOOD[:, :1], unbiased=True), "two masks of an image"),
        (lambda: diversity(GOOD[:, :1]), "two masks of an image"),
        (lambda: dice(GOOD, GOOD), "masks: expected shape"),
        (lambda: pixel_calibration(GOOD[:, 0] * 2.0 - 1, GOOD), "probabilities from 0 to 1"),
        (lambda: pixel_calibration(GOOD.float(), GOOD), "probs: expected shape"),
        (lambda: ged(np.array([["a"]]), GOOD), "expected a torch tensor"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, text):
    with pytest.raises(EvaluationError, match=text):
        call()


def test_masks_that_are_all_empty_agree():
    assert ged(GOOD, GOOD).tolist() == ged(GOOD, GOOD, unbiased=True).tolist() == [0, 0]
    assert hungarian_iou(GOOD, GOOD).tolist() == dice(GOOD[:, 0], GOOD).tolist() == [1, 1]
    assert math.isnan(variance_correlation(GOOD, GOOD))
