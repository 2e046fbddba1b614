"""Which widths are likely: distributions over ordered masks, their relaxation, and what they cost."""

from .annealing import exponential
from .chain import BernoulliChain, expected_under, tail_kl
from .downhill import Downhill, coarser_noise, gumbel_noise, log_steps, slope
from .nested import nested_dropout, nested_masks
from .tails import (
    categorical_tails,
    coarser_tails,
    geometric_tails,
    keep_logits,
    log_drop,
    log_keep,
    log_keep_from_logits,
    log_tails,
    ordered_masks,
    uniform_logits,
    with_floor,
)
from .terms import expected_cost, expected_width, optimal_tails

__all__ = [
    "BernoulliChain",
    "Downhill",
    "categorical_tails",
    "coarser_noise",
    "coarser_tails",
    "expected_cost",
    "expected_under",
    "expected_width",
    "exponential",
    "geometric_tails",
    "gumbel_noise",
    "keep_logits",
    "log_drop",
    "log_keep",
    "log_keep_from_logits",
    "log_steps",
    "log_tails",
    "nested_dropout",
    "nested_masks",
    "optimal_tails",
    "ordered_masks",
    "slope",
    "tail_kl",
    "uniform_logits",
    "with_floor",
]
