"""`Carried`: a tensor of which moments are known, or draws, instead of values.

A subclass of torch.Tensor, so that models take it for one. Every function that is called with it comes to
``__torch_function__``: where `rules` has a rule, moments go through it; where it has none, values are drawn from the
moments, and from there on functions run once a sample, each on ordinary tensors. What asks for numbers
(``if x.max() > 3``) has no answer that holds for all samples: `NotCarried`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .law import Draws, Moments
from .rules import EARLY, FUNCTIONS, NoRule, NotCarried
from .waiting import Affine, Law, Pending

if TYPE_CHECKING:
    from .walk import Walk

_ABOUT = frozenset((
    "shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "is_quantized", "is_meta", "is_mps",
    "is_xla", "is_nested", "requires_grad", "grad", "grad_fn", "is_leaf", "names", "size", "dim", "ndimension",
    "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "is_complex", "is_signed", "element_size",
    "itemsize", "nbytes", "get_device", "len", "storage_offset", "dim_order", "is_inference", "hash", "is_neg",
    "is_conj", "output_nr", "name", "retains_grad", "is_same_size", "version", "requires_grad_",
))  # fmt: skip
VIEWS = frozenset((
    "view", "reshape", "flatten", "permute", "transpose", "t", "T", "mT", "squeeze", "unsqueeze", "expand",
    "expand_as", "view_as", "getitem", "narrow", "select", "chunk", "split", "unbind", "movedim", "moveaxis",
    "swapaxes", "swapdims", "contiguous", "detach", "to", "float", "unflatten", "ravel", "H", "mH", "data",
))  # fmt: skip
"""Functions whose results may share memory with their argument."""


class Carried(Tensor):
    """See the module. law: what is known of it. is_view: whether it may share memory with another one."""

    law: Law
    walk: Walk
    is_view: bool

    @staticmethod
    def __new__(cls, law: Law, walk: Walk, is_view: bool = False) -> Carried:
        like = law.values[0] if isinstance(law, Draws) else law.mean
        made = Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        made.law, made.walk, made.is_view = law, walk, is_view
        return made  # type: ignore[no-any-return]

    def __init__(self, law: Law, walk: Walk, is_view: bool = False) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        name, in_place = _named(func, kwargs)
        if name in _ABOUT:
            return func(*map(_like, args), **kwargs)
        carried = list(carried_in((args, kwargs)))
        walk = carried[0].walk
        if (in_place and not isinstance(args[0], Carried)) or isinstance(kwargs.get("out"), Tensor):
            raise NotCarried(f"{name} writes a random value into an ordinary tensor")
        if not any(isinstance(x.law, Draws) for x in carried):
            try:
                return _by_rule(walk, name, in_place, carried, args, kwargs)
            except NoRule as reason:
                walk.say(name, str(reason))
        return sampled(walk, func, args, kwargs, name, in_place)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotCarried(f"{func} looks at memory that a random value does not have")

    def __repr__(self) -> str:  # type: ignore[override]
        kind = "draws" if isinstance(self.law, Draws) else "moments"
        return f"Carried({kind} of shape {tuple(self.shape)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotCarried("a random value cannot be copied or pickled")

    def numpy(self, *, force: bool = False) -> Any:
        """Refused: there are no numbers."""
        raise NotCarried("numpy asks for the numbers of a random value")

    def tolist(self) -> Any:
        """Refused: there are no numbers."""
        raise NotCarried("tolist asks for the numbers of a random value")


def _by_rule(walk: Walk, name: str, in_place: bool, carried: list[Carried], args: Any, kwargs: Any) -> Any:
    found = FUNCTIONS.get(name)
    if found is None:
        raise NoRule("it has no rule")
    settle(carried, EARLY.get(name, ()))
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    try:
        said = found(*laws(args), **laws(kwargs))
    except TypeError as error:
        raise NoRule(f"its rule does not take these arguments: {error}") from error
    if in_place:
        _write(args[0], said)
        return args[0]
    if name in VIEWS:
        carried[0].is_view = True
    return wrapped(walk, said, name in VIEWS)


def _write(x: Carried, law: Law) -> None:
    """In place: into the memory that views share, where there may be any."""
    if not x.is_view:
        x.law = law
        return
    law = law.done() if isinstance(law, (Affine, Pending)) else law
    assert isinstance(x.law, Moments)
    assert isinstance(law, Moments)
    x.law.mean.copy_(law.mean)
    x.law.variance.copy_(law.variance)
    x.law.share, x.law.covariance = None, None


def sampled(walk: Walk, func: Any, args: Any, kwargs: Any, name: str, in_place: bool = False) -> Any:
    """A function of torch's once a sample, on ordinary tensors."""
    if in_place and any(x.is_view for x in carried_in(args[:1])):
        raise NotCarried(f"{name} writes in place to a view of a random value")
    for x in carried_in((args, kwargs)):
        walk.draw_(x)
    results = [func(*of_sample(args, s), **of_sample(kwargs, s)) for s in range(walk.samples)]
    return args[0] if in_place else joined(walk, results, name, name in VIEWS)


def of_sample(value: Any, s: int) -> Any:
    """Arguments with the values of one sample."""
    return tree_map(lambda x: x.law.values[s] if isinstance(x, Carried) else x, value)  # type: ignore[union-attr]


def joined(walk: Walk, results: list[Any], name: str, is_view: bool = False) -> Any:
    """One result from those of all samples: tensors side by side; anything else must be the same in all of them."""
    leaves = [tree_leaves(result) for result in results]
    if len({len(found) for found in leaves}) != 1:
        raise NotCarried(f"{name} gives results of other structures in other samples")

    def one(*values: Any) -> Any:
        if isinstance(values[0], Tensor):
            if len({value.shape for value in values}) != 1:
                raise NotCarried(f"{name} gives results of other shapes in other samples")
            return Carried(Draws(torch.stack(values)), walk, is_view)
        if any(value != values[0] for value in values[1:]):
            raise NotCarried(f"{name} asks for the numbers of a random value")
        return values[0]

    return tree_map(one, *results)


def wrapped(walk: Walk, said: Any, is_view: bool = False) -> Any:
    """Moments as tensors that a model can go on with."""
    if isinstance(said, (Moments, Affine, Pending, Draws)):
        return Carried(said, walk, is_view)
    if isinstance(said, (tuple, list)):
        return type(said)(wrapped(walk, one, is_view) for one in said)
    return said


def settle(carried: list[Carried], but: tuple[type, ...] = ()) -> None:
    """Do what waits, but for these kinds."""
    for x in carried:
        if isinstance(x.law, (Affine, Pending)) and not isinstance(x.law, but):
            x.law = x.law.done()


def carried_in(value: Any) -> Iterator[Carried]:
    if isinstance(value, Carried):
        yield value
    elif type(value) in (tuple, list, dict):
        for one in value.values() if type(value) is dict else value:
            yield from carried_in(one)
    elif isinstance(value, (dict, tuple, list)):
        yield from (x for x in tree_leaves(value) if isinstance(x, Carried))


def laws(value: Any) -> Any:
    """Arguments with what is known in the place of tensors; `tree_map` takes longer than many a rule."""
    if isinstance(value, Carried):
        return value.law
    if type(value) in (tuple, list):
        return type(value)(map(laws, value))
    return {k: laws(v) for k, v in value.items()} if type(value) is dict else value


def _like(x: Any) -> Any:
    """An ordinary tensor that answers questions about its form."""
    if not isinstance(x, Carried):
        return x
    return x.law.values[0] if isinstance(x.law, Draws) else x.law.mean


def _named(func: Any, kwargs: dict[str, Any]) -> tuple[str, bool]:
    """The name of a function of torch, without underscores, and whether it writes to its first argument.

    >>> _named(Tensor.relu_, {}), _named(Tensor.__iadd__, {}), _named(Tensor.shape.__get__, {})
    (('relu', True), ('add', True), ('shape', False))
    """
    name: str = func.__name__ if func.__name__ != "__get__" else func.__self__.__name__
    if name.startswith("__i") and name.strip("_") in ("iadd", "isub", "imul", "itruediv", "idiv", "ipow"):
        return name.strip("_")[1:], True
    dunder = name.startswith("__")
    in_place = name == "__setitem__" or (name.endswith("_") and not dunder) or bool(kwargs.get("inplace"))
    if name == "requires_grad_":
        return name, False
    return name.strip("_"), in_place
