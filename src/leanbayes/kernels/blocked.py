"""A batch of activations that stays in blocks between sparse layers, whatever code runs in between.

`Blocked` is a tensor of the shape it stands for. Autograd treats it as any other tensor: gradients, hooks, views,
in-place operations, version checks and custom functions are torch's own. Only below autograd, where torch would run
the kernel of an operation, `rules` run the operations they know on the blocks; for every other operation the arguments
become ordinary tensors first. So a rule says what numbers an operation gives, and nothing else can depend on it.

The numbers are in a `Cell`, which a tensor shares with its views and detached copies: writing to one of them changes
what the cell holds. A cell whose memory somebody else may see (a view that is not a reshaping of whole activations) or
write to is turned into an ordinary tensor for good, and all that share it go on with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..errors import LeanBayesError
from .deferred import Pass, Upstream
from .geometry import LANES
from .layout import block, unblock
from .pooling import Winners


class Cell:
    """The numbers of an activation of ``batch`` data, (batch, channels, positions), in one of several forms.

    Blocks (blocks, positions, channels, lanes) are never written to: an operation in place puts new ones here. What
    waits to be computed is computed when the blocks are asked for. Beyond the batch, lanes hold any finite numbers;
    ``clean`` says that they are zero or come from a kernel, which keeps them finite.
    """

    __slots__ = ("_held", "_shape", "batch", "channels", "clean", "origin", "positions", "rectified_by")

    def __init__(self, held: Tensor | Pass | Upstream | Winners, batch: int, clean: bool = True) -> None:
        like = held.y if isinstance(held, Pass) else held.grad if isinstance(held, Upstream) else held
        like = like.won if isinstance(like, Winners) else like
        self.batch, self.positions, self.channels = batch, like.shape[1], like.shape[2]
        self._held: Any = held
        self._shape: torch.Size | None = None  # of the ordinary tensor, once there is one
        self.clean = clean
        self.origin: Pass | None = None
        """How the blocks were computed, where a gradient can be had from that without the blocks."""
        self.rectified_by: Cell | None = None
        """The output of a rectifier that this gradient has already passed."""

    @property
    def is_plain(self) -> bool:
        """Whether the numbers are in an ordinary tensor."""
        return self._shape is not None

    @property
    def is_activation(self) -> bool:
        """Whether there are blocks of numbers, or can be."""
        return not isinstance(self._held, Winners) and not self.is_plain

    @property
    def held(self) -> Any:
        """What is there: blocks, a `Pass`, an `Upstream`, `Winners`, or an ordinary tensor."""
        return self._held

    def put(self, held: Tensor | Pass | Upstream, clean: bool = True) -> None:
        """Replace the numbers, as an operation in place does."""
        self._held, self.clean, self.origin, self.rectified_by = held, clean, None, None

    @property
    def blocks(self) -> Tensor:
        """(blocks, positions, channels, lanes)."""
        if self.is_plain:
            return block(self._held.reshape(self.batch, self.channels, self.positions))
        if isinstance(self._held, (Pass, Upstream)):
            waiting = self._held
            self._held = waiting.value()
            self.origin = waiting if isinstance(waiting, Pass) and waiting.sign_from_y else None
        return self._held  # type: ignore[no-any-return]

    @property
    def recipe(self) -> Pass | None:
        """How the blocks are, or were, computed; None where nobody needs to know any more."""
        return self._held if isinstance(self._held, Pass) else self.origin

    def plain(self, shape: torch.Size) -> Tensor:
        """An ordinary tensor with these numbers; the one in the cell where there is one."""
        if self.is_plain:
            return self._held.view(shape)  # type: ignore[no-any-return]
        if isinstance(self._held, Winners):
            return self._held.plain().view(shape)
        return unblock(self.blocks, [self.batch, self.channels, self.positions]).view(shape)

    def open(self, shape: torch.Size) -> Tensor:
        """The ordinary tensor that holds these numbers from now on."""
        if not self.is_plain:
            self._held, self._shape = self.plain(shape), shape
            self.origin = self.rectified_by = None
        return self.plain(shape)

    def fits(self, shape: tuple[int, ...] | torch.Size) -> bool:
        """Whether blocks stand for a tensor of a shape: (batch, channels, *size), or a flattened image."""
        if len(shape) < 2 or shape[0] != self.batch:
            return False
        size = torch.Size(shape[2:]).numel()
        return (shape[1] == self.channels and size == self.positions) or (
            len(shape) == 2 and shape[1] == self.channels * self.positions
        )


class Blocked(torch.Tensor):
    """See the module. Made by `blocked` and by sparse operations."""

    cell: Cell
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, cell: Cell, shape: tuple[int, ...] | torch.Size) -> Blocked:
        dtype = torch.int64 if isinstance(cell.held, Winners) else torch.float32
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device("cpu"))
        made.cell = cell
        return made  # type: ignore[no-any-return]

    def __init__(self, cell: Cell, shape: tuple[int, ...] | torch.Size) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        rule = RULES.get(func)
        kwargs = kwargs or {}
        if rule is not None and (done := rule(*args, **kwargs)) is not NotImplemented:
            return done
        # in inference mode torch does not take composite operations, batch_norm among them, apart before they come here
        if rule is None and func._can_decompose() and (done := func.decompose(*args, **kwargs)) is not NotImplemented:
            return done
        return _as_plain(func, args, kwargs)

    @property
    def blocks(self) -> Tensor:
        """(blocks, positions, channels, lanes), without history."""
        return self.cell.blocks

    def plain(self) -> Tensor:
        """A copy as an ordinary tensor, with its history."""
        return _Unblock.apply(self)  # type: ignore[no-any-return]

    # what torch does not hand to __torch_dispatch__ because it looks at memory
    def numpy(self, *, force: bool = False) -> Any:
        """As `torch.Tensor.numpy`; the array shares memory with the tensor."""
        refused = self.requires_grad and not force  # by torch, with its own message
        return self.plain().numpy() if refused else _opened(self).numpy(force=force)

    def tolist(self) -> Any:
        """As `torch.Tensor.tolist`."""
        return _opened(self).tolist()

    def data_ptr(self) -> int:
        """As `torch.Tensor.data_ptr`."""
        return _opened(self).data_ptr()

    def untyped_storage(self) -> Any:
        """As `torch.Tensor.untyped_storage`."""
        return _opened(self).untyped_storage()

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return _opened(self).__dlpack__(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _copied(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Tensor:
        if not self.is_leaf:
            return super().__deepcopy__(memo)  # type: ignore[no-any-return, no-untyped-call]  # torch's own refusal
        memo[id(self)] = made = _copied(self)
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.plain())


RULES: dict[Any, Callable[..., Any]] = {}
"""Operations that run on blocks, see `rules`."""


def blocked(x: Tensor) -> Blocked:
    """A tensor (batch, channels, *size) in blocks, with its history; one that is blocked comes back as it is.

    >>> from leanbayes.kernels.library import library
    >>> x = torch.randn(5, 3, 2, 2)
    >>> library() is None or bool((torch.relu(blocked(x)) == torch.relu(x)).all())
    True
    """
    return x if isinstance(x, Blocked) else _Block.apply(x)  # type: ignore[no-any-return]


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Blocked:
        return Blocked(Cell(block(x.detach()), x.shape[0]), x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.plain() if isinstance(grad, Blocked) else grad


class _Unblock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Blocked) -> Tensor:
        made = x.cell.plain(x.shape)
        return made.clone() if x.cell.is_plain else made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def blocks_of(x: Tensor, positions: int, channels: int) -> Tensor:
    """The numbers of x as blocks of so many positions and channels, whatever x is; without history."""
    if isinstance(x, Blocked):
        cell = x.cell
        if cell.is_activation and (cell.positions, cell.channels) == (positions, channels):
            return cell.blocks
        x = cell.plain(x.shape)
    return block(x.detach().reshape(x.shape[0], channels, positions))


def finite_lanes(cell: Cell) -> Tensor:
    """The blocks, with zeros beyond the batch where an operation may have left what is not finite."""
    blocks = cell.blocks
    if not cell.clean and cell.batch % LANES:
        blocks[-1, ..., cell.batch % LANES :] = 0
        cell.clean = True
    return blocks


def _copied(x: Blocked) -> Tensor:
    return x.cell.plain(x.shape).clone().requires_grad_(x.requires_grad)


def _opened(x: Blocked) -> Tensor:
    return x.cell.open(x.shape)


def _as_plain(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any operation, on ordinary tensors; what it writes to or gives a view of is one for good from then on."""
    schema = func._schema
    names = [a.name for a in schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    seen = {a.name for a in schema.arguments if a.alias_info is not None}
    if torch.Tag.inplace_view in func.tags and any(isinstance(given.get(n), Blocked) for n in seen):
        raise LeanBayesError(
            f"{func} changes the shape of a sparse layer's activation in place, which its layout does not allow; "
            "use the operation that returns a new tensor (x.squeeze() instead of x.squeeze_())"
        )
    back: dict[int, Tensor] = {}

    def turn(name: str, value: Any) -> Any:
        def one(x: Any) -> Any:
            if not isinstance(x, Blocked):
                return x
            made = x.cell.open(x.shape) if name in seen else x.cell.plain(x.shape)
            back[id(made)] = x  # alpha_dropout returns its input unchanged, though its schema says otherwise
            return made

        return tree_map(one, value)

    turned = {name: turn(name, value) for name, value in given.items()}
    out = func(*(turned[n] for n in names[: len(args)]), **{n: turned[n] for n in kwargs})
    for made in turned.values():
        if (x := back.get(id(made))) is not None and made.shape != x.shape:
            raise LeanBayesError(f"{func}: expected out= of shape {tuple(made.shape)}, received {tuple(x.shape)}")
    return tree_map(lambda t: back.get(id(t), t) if isinstance(t, Tensor) else t, out) if back else out
