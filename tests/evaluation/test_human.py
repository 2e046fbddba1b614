"""Predictions against what several annotators said: scipy, plain loops, and the masks of LIDC's shape."""

import math

import pytest
import torch
from scipy.special import rel_entr
from scipy.stats import entropy

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Classification, accuracy
from leanbayes.evaluation.metrics import human
from leanbayes.evaluation.metrics.human import cross_entropy, distance, entropy_gap, kl, votes


def random_case(seed, rows=150, classes=5):
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.randint(4, (rows, classes), generator=generator) + torch.eye(classes).long()[0]


@pytest.mark.parametrize("seed", range(3))
def test_all_four_equal_scipy(seed):
    probs, counts = random_case(seed)
    p, q = probs.numpy(), (counts / counts.sum(1, keepdim=True)).double().numpy()
    divergence, surprise = rel_entr(q, p).sum(1).mean(), entropy(q, axis=1).mean()
    for targets in (counts, torch.tensor(q), torch.tensor(q).float()):
        assert kl(probs, targets) == pytest.approx(divergence, abs=1e-6)
        assert cross_entropy(probs, targets) == pytest.approx(divergence + surprise, abs=1e-6)
        assert distance(probs, targets) == pytest.approx(abs(p - q).sum(1).mean() / 2, abs=1e-6)
        assert entropy_gap(probs, targets) == pytest.approx((entropy(p, axis=1) - entropy(q, axis=1)).mean(), abs=1e-6)


def test_a_model_that_doubts_as_people_do_is_perfect():
    _, counts = random_case(0)
    probs = counts.double() / counts.sum(1, keepdim=True)
    assert kl(probs, counts) == pytest.approx(0, abs=1e-12)
    assert distance(probs, counts) == entropy_gap(probs, counts) == 0


def test_degenerate_inputs():
    certain, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 4]])
    assert cross_entropy(certain, wrong) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert (distance(certain, wrong), entropy_gap(certain, wrong)) == (1.0, 0.0)
    assert kl(certain, torch.tensor([[7, 0]])) == 0.0
    assert entropy_gap(certain, torch.tensor([[1, 1]])) == pytest.approx(-math.log(2))  # surer than people


def test_the_stream_fills_human_metrics_and_takes_the_majority_for_the_hard_ones():
    probs, counts = random_case(4, rows=300)
    stream, hard = Classification(), Classification()
    for at in range(0, 300, 64):
        stream.update(probs[at : at + 64], counts[at : at + 64])
    majority = torch.tensor([row.index(max(row)) for row in counts.tolist()])
    hard.update(probs, majority)
    found, expected = stream.compute(), hard.compute()
    expected |= {f"human.{f.__name__}": f(probs, counts) for f in (cross_entropy, kl, distance, entropy_gap)}
    assert found == pytest.approx(expected, abs=1e-9)
    tied = sum(row.count(max(row)) > 1 for row in counts.tolist())
    assert any(note.startswith(f"{tied} of 300 votes") for note in stream.notes())
    assert not any(key.startswith("human.") for key in hard.compute())


def test_votes_count_masks_and_labels():
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(3, 4, 6, 5, generator=generator) < 0.3  # as LIDC has them: (images, annotators, height, width)
    found = votes(masks, 2)
    assert found.shape == (3, 2, 6, 5)
    assert torch.equal(found[:, 1], masks.sum(1))
    assert torch.equal(found.sum(1), torch.full((3, 6, 5), 4))
    labels = torch.tensor([[0, 2, 2], [1, 9, 9]])  # two data, three annotators; two abstain
    assert votes(labels, 3, ignore_index=9).tolist() == [[1, 0, 2], [0, 1, 0]]


def test_masks_of_four_annotators_go_through_the_stream():
    generator = torch.Generator().manual_seed(1)
    masks = torch.rand(3, 4, 6, 5, generator=generator) < 0.4
    probs = torch.randn(3, 2, 6, 5, generator=generator).softmax(1)
    with pytest.raises(EvaluationError, match=r"votes\(targets, num_classes=2\)"):
        accuracy(probs, masks)
    stream = Classification()
    stream.update(probs, votes(masks, 2))
    share = masks.double().mean(1)
    expected = float((probs[:, 1].double() - share).abs().mean())
    assert stream.count == 90
    assert stream.compute()["human.distance"] == pytest.approx(expected, abs=1e-6)
    assert stream.compute()["accuracy"] == pytest.approx(
        float(((probs[:, 1] > probs[:, 0]) == (share > 0.5)).double().mean())
    )


def test_bad_input_is_refused():
    probs = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    with pytest.raises(EvaluationError, match=r"human.kl: expected shares or votes .* received labels"):
        kl(probs, torch.tensor([0, 1]))
    with pytest.raises(EvaluationError, match=r"targets\[1\].*sum of 0\.9"):
        kl(probs, torch.tensor([[0.5, 0.5], [0.5, 0.4]]))
    with pytest.raises(EvaluationError, match=r"human\.distance: expected at least one datum"):
        distance(probs[:0], torch.zeros(0, 2))
    with pytest.raises(EvaluationError, match=r"labels\[1, 0\]: .*0\.\.1, received 5.*ignore_index=5"):
        votes(torch.tensor([[0, 1], [5, 0]]), 2)
    for labels in (torch.zeros(3, 2), torch.zeros(3).long(), [[0, 1]]):
        with pytest.raises(EvaluationError, match="integer or bool labels"):
            votes(labels, 2)
    for wrong in (1, 10**60):
        with pytest.raises(EvaluationError, match="num_classes"):
            votes(torch.zeros(2, 2).long(), wrong)
    assert set(human.each(probs.double(), probs.double())) == {"cross_entropy", "kl", "distance", "entropy_gap"}
