"""Which widths are likely: distributions over ordered masks, their relaxation, and what they cost."""

from .annealing import exponential as exponential
from .chain import BernoulliChain as BernoulliChain, expected_under as expected_under, tail_kl as tail_kl
from .downhill import (
    Downhill as Downhill,
    coarser_noise as coarser_noise,
    gumbel_noise as gumbel_noise,
    log_steps as log_steps,
    slope as slope,
)
from .nested import nested_dropout as nested_dropout, nested_masks as nested_masks
from .tails import (
    categorical_tails as categorical_tails,
    coarser_tails as coarser_tails,
    geometric_tails as geometric_tails,
    keep_logits as keep_logits,
    log_drop as log_drop,
    log_keep as log_keep,
    log_keep_from_logits as log_keep_from_logits,
    log_tails as log_tails,
    ordered_masks as ordered_masks,
    uniform_logits as uniform_logits,
    with_floor as with_floor,
)
from .terms import expected_cost as expected_cost, expected_width as expected_width, optimal_tails as optimal_tails
