"""Mangled inputs get an error that names the offending index and the way out."""

import pytest
import torch

from leanbayes.errors import EvaluationError
from leanbayes.evaluation import Classification, Regression, accuracy, auroc, coverage, ece, mae, nll, rmse

P = torch.tensor([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]])
Y = torch.tensor([0, 1, 0])


def spoilt(row, values):
    probs = P.clone()
    probs[row] = torch.tensor(values)
    return probs


@pytest.mark.parametrize(
    ("probs", "targets", "message"),
    [
        (spoilt(1, [float("nan"), 0.5]), Y, r"probs\[1\].*finite"),
        (spoilt(2, [float("inf"), 0.5]), Y, r"probs\[2\].*finite"),
        (spoilt(2, [0.9, 0.2]), Y, r"probs\[2\].*sum of 1\.1"),
        (spoilt(0, [1.5, -0.5]), Y, r"probs\[0\].*logits"),
        (P, torch.tensor([0, 2, 0]), r"targets\[1\].*0\.\.1.*received 2"),
        (P, torch.tensor([0, 1, -1]), r"targets\[2\].*received -1"),
        (P, Y[:2], r"expected shape \(3,\).*received \(2,\)"),
        (P, torch.zeros(3, 4, dtype=torch.bool), r"received \(3, 4\); labels by several people: .*num_classes=2"),
        (P, torch.tensor([[1, 0], [0, 0], [2, 1]]), r"targets\[1\].*at least one vote"),
        (P, torch.tensor([[1, 0], [0, 1], [2, -1]]), r"targets\[2\].*counts of votes"),
        (P, torch.tensor([[1.0, 0.0], [0.5, 0.6], [0.5, 0.5]]), r"targets\[1\].*sum of 1\.1"),
        (P, torch.tensor([[3.0, 1.0]] * 3), r"targets\[0\].*targets\.long"),
        (P, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.5, -0.5]]), r"targets\[2\].*0 or more"),
        (P, torch.tensor([[1.0, 0.0], [float("nan"), 1.0], [1.0, 0.0]]), r"targets\[1\].*finite"),
        (P, torch.ones(3, 2, dtype=torch.bool), r"integer labels"),
        (P, Y.float(), r"integer labels"),
        (P[:, :1], Y, r"C >= 2"),
        (P[0], Y, r"\(N, C\)"),
        (P.long(), Y, r"floating point"),
        (P.numpy(), Y, r"torch tensor"),
        (P[:0], Y[:0], r"at least one datum"),
    ],
)
@pytest.mark.parametrize("metric", [accuracy, nll, ece])
def test_classification(metric, probs, targets, message):
    with pytest.raises(EvaluationError, match=message):
        metric(probs, targets)


def test_a_stream_names_the_datum_of_the_whole_data_set():
    stream = Classification()
    stream.update(P, Y)
    with pytest.raises(EvaluationError, match=r"probs\[5\]"):
        stream.update(spoilt(2, [0.1, 0.1]), Y)
    assert stream.count == 3  # the bad batch left no trace


def test_a_pixel_is_named_by_its_position():
    probs = torch.full((2, 3, 4, 5), 1 / 3)
    targets = torch.zeros(2, 4, 5, dtype=torch.long)
    targets[1, 2, 3] = 7
    with pytest.raises(EvaluationError, match=r"targets\[1, 2, 3\]"):
        accuracy(probs, targets)
    targets[0, 0, 0] = 9
    with pytest.raises(EvaluationError, match=r"targets\[1, 2, 3\].*received 7"):
        accuracy(probs, targets, ignore_index=9)


def test_one_hot_rows_are_the_votes_of_one_person():
    assert accuracy(P, torch.nn.functional.one_hot(Y)) == accuracy(P, Y)
    assert nll(P, torch.nn.functional.one_hot(Y).float()) == nll(P, Y)


def test_positions_without_votes_count_only_where_nothing_may_be_ignored():
    said = torch.tensor([[[1, 0], [0, 0]]])  # one image, two classes, two pixels; nobody labelled the second
    probs = torch.full((1, 2, 2), 0.5)
    with pytest.raises(EvaluationError, match=r"targets\[0, 1\].*at least one vote"):
        accuracy(probs, said)
    assert accuracy(probs, said, ignore_index=-100) == 1.0


def test_a_stream_refuses_a_batch_of_another_kind_and_stays_as_it_was():
    stream = Classification()
    stream.update(P, Y)
    with pytest.raises(EvaluationError, match=r"expected labels .* received labels by several annotators"):
        stream.update(P, torch.nn.functional.one_hot(Y))
    with pytest.raises(EvaluationError, match=r"expected 2 classes .* received 3"):
        stream.update(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    assert stream.count == stream.data == 3
    with pytest.raises(EvaluationError, match="at least one datum"):
        Classification().points()
    with pytest.raises(EvaluationError, match="at least one datum"):
        Classification().compute()


def test_half_precision_probabilities_pass():
    probs = torch.randn(50, 10).softmax(1).bfloat16()
    assert 0 <= accuracy(probs, torch.zeros(50, dtype=torch.long)) <= 1


def test_regression():
    y = torch.zeros(4)
    with pytest.raises(EvaluationError, match=r"mean: expected shape \(4,\).*received \(4, 2\)"):
        rmse(torch.zeros(4, 2), y)
    with pytest.raises(EvaluationError, match=r"targets\[2\].*nan"):
        mae(y, torch.tensor([0.0, 0.0, float("nan"), 0.0]))
    with pytest.raises(EvaluationError, match=r"lower\[1\].*swap"):
        coverage(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0]), torch.zeros(2))
    with pytest.raises(EvaluationError, match="at least one"):
        rmse(torch.zeros(0), torch.zeros(0))
    stream = Regression(levels=())
    stream.update(y, mean=y)
    with pytest.raises(EvaluationError, match=r"mean\[5\]"):
        stream.update(y, mean=torch.tensor([0.0, float("inf"), 0.0, 0.0]))
    with pytest.raises(EvaluationError, match="above 0 and below 1"):
        Regression(levels=(90,))


def test_rank_scores():
    good = torch.tensor([0.1, 0.2])
    with pytest.raises(EvaluationError, match=r"outside\[1\]"):
        auroc(good, torch.tensor([0.0, float("nan")]))
    with pytest.raises(EvaluationError, match="outside: expected at least one"):
        auroc(good, good[:0])
    with pytest.raises(EvaluationError, match="one score a datum"):
        auroc(good[None], good)
    with pytest.raises(EvaluationError, match="'ood' or 'in'"):
        auroc(good, good, positive="yes")


@pytest.mark.parametrize("binning", [{"bins": 0}, {"bins": 2.5}, {"min_count": -1}])
def test_binning(binning):
    with pytest.raises(EvaluationError, match="whole number"):
        ece(P, Y, **binning)
