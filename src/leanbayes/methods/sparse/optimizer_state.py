"""Moving the active weights of a sparse tensor in place, and resetting their optimiser state.

Parameters and state tensors stay the same objects of the same size, so that optimisers and DDP keep their references.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import TrainingError
from ...posteriors.sparse import Sparse

# optimisers whose state does not start at zero, and the option that it starts at
_BEGINS_AT = {("Adagrad", "sum"): "initial_accumulator_value", ("Rprop", "step_size"): "lr"}


def renewed(index: Tensor, keep: Tensor, candidates: tuple[Tensor, Tensor], own: Tensor | None, count: int) -> Tensor:
    """The places of the weights after an update: the ``count`` with the lowest scores move to the best new places.

    index: (n,) places before. keep: (n,) scores. candidates: (scores, places) of inactive places, highest first. own:
    (n,) scores of the weights by the measure of the candidates, if a weight that is removed may be chosen again; it
    then does not change. The number of active places stays the same.

    >>> scores = torch.tensor([3.0]), torch.tensor([9])
    >>> renewed(torch.tensor([4, 5, 6]), torch.tensor([1.0, 2.0, 0.5]), scores, None, 1)
    tensor([4, 5, 9])
    """
    scores, places = candidates
    going = keep.topk(min(count, len(keep)), largest=False).indices
    if own is None:
        going, places = going[: len(places)], places[: len(going)]
    else:
        rivals = torch.cat([own[going], scores.to(own.dtype)])  # stable: a tie keeps the weight
        chosen = rivals.argsort(descending=True, stable=True)[: len(going)]
        returning = chosen[chosen < len(going)]
        staying = torch.zeros(len(going), dtype=torch.bool, device=going.device).index_fill(0, returning, True)
        places = places[chosen[chosen >= len(going)] - len(going)]
        going = going[~staying]
    return index.index_copy(0, going, places.to(index.dtype))


@torch.no_grad()
def overwrite_(q: Sparse, index: Tensor, values: Mapping[str, Tensor | float], optimizer: Optimizer) -> Tensor:
    """Move weights to other places; returns a mask (n,) of those that moved.

    index: (n,) the places after. values: the first values of the parameters of moved weights, by name. Their gradients
    and optimiser state are reset; those of others do not change.
    """
    moved = index != q.index
    slots = moved.nonzero().flatten()
    for name, value in values.items():
        parameter: Any = q._parameters[name]
        parameter[slots] = torch.as_tensor(value, dtype=parameter.dtype, device=parameter.device)
        if parameter.grad is not None:
            parameter.grad[slots] = 0.0
        for key, state in optimizer.state.get(parameter, {}).items():
            if isinstance(state, Tensor) and state.shape == parameter.shape:
                state[slots] = _begins_at(optimizer, parameter, key)
    q.index.copy_(index)
    return moved


@torch.no_grad()
def thin_(q: Sparse, keep: Tensor, count: int, optimizer: Optimizer) -> int:
    """Keep the ``count`` weights with the highest scores ``keep`` (n,); returns how many are removed.

    Parameters stay the same objects, of a smaller size, and keep their optimiser state.
    """
    before = len(q.index)
    slots = keep.topk(count).indices.sort().values
    for p in q.parameters(recurse=False):
        for key, state in optimizer.state.get(p, {}).items():
            if isinstance(state, Tensor) and state.shape == p.shape:
                optimizer.state[p][key] = state[slots]
    q.take_(slots)
    return before - count


def check_optimizer(optimizer: Optimizer, like: Tensor) -> None:
    """Refuse an optimiser whose state is neither a number nor a number per element, which could not be reset.

    It is tested on a parameter of five elements, with a copy of the optimiser that shares no state.
    """
    name = type(optimizer).__name__
    probe: Any = object.__new__(type(optimizer))
    probe.__dict__.update(optimizer.__dict__)
    dummy = nn.Parameter(torch.ones(5, dtype=like.dtype, device=like.device))
    dummy.grad = torch.full_like(dummy, 0.1)
    probe.state = defaultdict(dict)
    probe.param_groups = [{**{k: v for k, v in optimizer.param_groups[0].items() if k != "params"}, "params": [dummy]}]
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        probe.__dict__[hooks] = OrderedDict()
    advice = "use torch.optim.SGD, Adam or another whose state is per element"
    try:
        type(optimizer).step(probe)  # not probe.step, which a scheduler may have bound to the optimiser itself
    except Exception as error:
        raise TrainingError(
            f"optimizer: expected one whose state belongs to single weights, so that new ones can start afresh; "
            f"{name} failed in a trial step ({type(error).__name__}: {error}); {advice}"
        ) from error
    for key, state in probe.state[dummy].items():
        alone = state is None or isinstance(state, (bool, int, float))
        if not alone and not (isinstance(state, Tensor) and (state.shape == dummy.shape or state.numel() == 1)):
            raise TrainingError(
                f"optimizer: expected one whose state belongs to single weights, so that new ones can start afresh; "
                f"{name} keeps {key!r} for all of a parameter; {advice}"
            )


def _begins_at(optimizer: Optimizer, parameter: Tensor, key: str) -> float:
    for kind in type(optimizer).__mro__:
        if (option := _BEGINS_AT.get((kind.__name__, key))) is not None:
            group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
            return float(group[option])
    return 0.0
