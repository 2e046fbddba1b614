"""What is said of tensors that do not fit, before a kernel sees them; the kernels check the same once more."""

from __future__ import annotations

from torch import Tensor

from ..errors import DataError


def expect(x: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Refuse a tensor of another shape."""
    if x.shape != shape:
        raise DataError(f"expected {what} of shape {tuple(shape)}, received {tuple(x.shape)}; check what is passed in")


def side_by_side(x: Tensor) -> Tensor:
    """The tensor with its elements in order in memory, itself where they are."""
    return x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous()
