"""What a batch is, how a model is called with it, and what holds batches, for every verb (`fit`, `predict`, ...).

| what is given | what it is |
| --- | --- |
| a DataLoader, or any iterable of batches | used as it is; a generator can be gone through once |
| a Dataset | read in batches, in its order (`fit` shuffles) |
| a list of batches | each as a loader would yield it |
| a tensor | inputs alone |
| a tuple of tensors, ``(x, y)`` or ``(x1, x2, y)`` | inputs and targets side by side; to `predict` all are inputs |
| a mapping of tensors | arguments of the model by keyword, with "labels", "label" or "targets" beside them |

Arrays of numpy may stand wherever a tensor may; their floating-point numbers take the precision of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, Dataset, IterableDataset

from . import checks
from .errors import DataError

ROWS = 256
"""Rows a batch of tensors that came without a loader."""
KINDS = "a DataLoader, a Dataset, a list of batches, a tensor, a tuple of tensors (x, y) or a mapping of tensors"


def split(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch: ``(x, y)``, ``(x1, x2, ..., y)``, a mapping with "labels", or inputs alone.

    >>> split({"input_ids": 1, "labels": 2})
    ({'input_ids': 1}, 2)
    """
    if isinstance(batch, Mapping):
        rest = {k: v for k, v in batch.items() if k not in ("labels", "label", "targets")}
        targets = next((batch[k] for k in ("labels", "label", "targets") if k in batch), None)
        return rest, targets
    if isinstance(batch, (tuple, list)):
        if len(batch) == 1:
            return batch[0], None
        if len(batch) == 2:
            return batch[0], batch[1]
        if len(batch) > 2:
            return tuple(batch[:-1]), batch[-1]
        raise DataError("expected a batch of (inputs, targets), received an empty one")
    return batch, None


class LatentOutput(NamedTuple):
    """The output of a model with latent variables of each datum.

    outputs: (batch, ...), for the likelihood. kl: (batch,), KL(q(z | x) || p(z)) of each datum, which `ELBO` averages
    over the batch and does not divide by the number of data.
    targets: replace the labels if given, such as the inputs that are reconstructed.
    """

    outputs: Tensor
    kl: Tensor
    targets: Tensor | None = None


class TaughtOutput(NamedTuple):
    """The output of a student, compared with a teacher's samples (batch, S, classes) in place of labels.

    and_labels: append the labels to the samples (`with_labels`).
    """

    outputs: Tensor
    targets: Tensor
    and_labels: bool = False


class SeesTargets(nn.Module):
    """Base of models whose approximate posterior reads the target, such as a probabilistic U-Net.

    In training mode `fit` calls them with ``targets=``; in evaluation mode they get their inputs alone, so that no
    prediction or validation can see a label.
    """


def call(model: nn.Module, inputs: Any, targets: Any = None) -> Any:
    """Call a model with a mapping by keyword, a tuple by position, or a tensor alone.

    targets: for models that are `SeesTargets`, in training mode only.
    """
    also = {"targets": targets} if targets is not None and isinstance(model, SeesTargets) and model.training else {}
    if isinstance(inputs, Mapping):
        return model(**inputs, **also)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs, **also)
    return model(inputs, **also)


def targets_of(output: Any, targets: Any) -> Any:
    """The targets of an output: its own, or the labels."""
    own = output.targets if isinstance(output, (LatentOutput, TaughtOutput)) else None
    if isinstance(output, TaughtOutput) and output.and_labels:
        return with_labels(output.targets, targets)
    return targets if own is None else own


def with_labels(samples: Tensor, labels: Any) -> Tensor:
    """Probabilities (batch, S, classes) and, as one more sample, the labels of the batch: (batch, S + 1, classes)."""
    count, classes = len(samples), samples.shape[-1]
    whole = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    if not whole or labels.shape != (count,) or (count and not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        raise DataError(
            f"label_weight: expected a label from 0 to {classes - 1} for each of {count} data, received "
            f"{checks.short(labels)}; pass label_weight=0 to learn from the teacher alone"
        )
    return torch.cat([samples, one_hot(labels.long(), classes).to(samples).unsqueeze(1)], 1)


def output_tensor(output: Any) -> Tensor:
    """The tensor that carries the prediction: the output itself, its ``logits``, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise DataError(
        f"expected the model to return a tensor, 'logits' in a dict or object, or a tuple that starts with a tensor, "
        f"received {type(output).__name__}; wrap the model in a module that returns the tensor"
    )


def size(inputs: Any) -> int:
    """The number of data in a batch."""
    first = first_tensor(inputs)
    if first.ndim == 0:
        raise DataError("expected inputs with a batch dimension, received a scalar")
    return first.shape[0]


def first_tensor(inputs: Any) -> Tensor:
    """The first tensor among the inputs."""
    several = isinstance(inputs, (Mapping, tuple, list))
    for value in (inputs.values() if isinstance(inputs, Mapping) else inputs) if several else [inputs]:
        if isinstance(value, Tensor):
            return value
    raise DataError(f"expected a tensor, or a tuple or mapping of tensors, received {type(inputs).__name__}")


def to(inputs: Any, device: torch.device | str) -> Any:
    """Inputs or targets on a device, however nested."""
    return map_tensors(lambda t: t.to(device), inputs)


def rows(inputs: Any, start: int, stop: int) -> Any:
    """Data ``start:stop`` of the inputs."""
    return map_tensors(lambda t: t[start:stop], inputs)


def map_tensors(function: Any, value: Any) -> Any:
    """The same nesting of tuples, lists and mappings, with a function applied to every tensor."""
    return _mapped(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All values in nested tuples, lists and mappings, each with the innermost key above it.

    >>> list(leaves({"a": (1, [2]), "b": 3}))
    [('a', 1), ('a', 2), ('b', 3)]
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, str(key))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part, name)
    else:
        yield name, value


def accept(
    data: Any,
    model: nn.Module | None = None,
    *,
    name: str = "data",
    error: checks.Error = DataError,
    arguments: bool = False,
) -> Any:
    """The data with arrays converted to tensors; refused before anything is computed if they are of no known kind.

    arguments: whether a tuple or mapping holds the arguments of a model, which need not be tensors.

    >>> import numpy as np
    >>> [part.dtype for part in accept((np.zeros((2, 3)), np.array([0, 1])))]
    [torch.float32, torch.int64]
    >>> accept(3)
    Traceback (most recent call last):
    leanbayes.errors.DataError: data: expected a DataLoader, a Dataset, a list of batches, ..., received 3
    """
    if isinstance(data, (DataLoader, Dataset)):
        return data
    if isinstance(data, (str, bytes, nn.Module, type)) or not (isinstance(data, Iterable) or _is_array(data)):
        checks.refuse(name, KINDS, data, error, "pass data.train" if type(data).__name__ == "DataSet" else "")
    try:
        if isinstance(data, (tuple, list, Mapping)) or _is_array(data):
            data = _tensors(data, _precision(model))
    except (TypeError, ValueError) as problem:  # of numpy: text, objects
        raise error(f"{name}: expected arrays of numbers ({problem}); {checks.NAMES}") from problem
    for part in _parts(data) if is_table(data) else ():
        if part.is_meta or part.layout != torch.strided:
            kind = "the meta device" if part.is_meta else f"layout {part.layout}"
            raise error(f"{name}: expected dense tensors with values, received one of {kind}; materialise it first")
    if arguments:
        return data
    if is_table(data):
        sizes = [len(part) if part.ndim else None for part in _parts(data)]
        if None in sizes or len(set(sizes)) > 1:
            shapes = " and ".join(str(tuple(part.shape)) for part in _parts(data))
            raise error(f"{name}: expected as many targets as inputs, with a row a datum, received {shapes}")
    elif checks.holds_numbers(data):
        raise error(f"{name}: expected arrays or tensors, received numbers in lists; pass np.asarray(x)")
    elif isinstance(data, Mapping) or (isinstance(data, tuple) and any(isinstance(part, Tensor) for part in data)):
        found = ", ".join(type(part).__name__ for part in (data.values() if isinstance(data, Mapping) else data))
        raise error(f"{name}: expected tensors only, received {found or 'none'}; a list holds batches")
    return data


def stream(data: Any) -> Iterator[Any]:
    """Batches of data as `accept` returns them.

    >>> [len(x) for x, y in stream((torch.zeros(600, 2), torch.zeros(600)))]
    [256, 256, 88]
    """
    data = accept(data)
    if is_table(data):
        return (rows(data, at, at + ROWS) for at in range(0, len(_parts(data)[0]), ROWS))
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return iter(DataLoader(data, batch_size=ROWS, generator=torch.Generator()))  # draws nothing from the global one
    return iter(data)


def length(data: Any) -> int | None:
    """The number of data, if it is known without reading them all, else None.

    >>> length((torch.zeros(600, 2), torch.zeros(600))), length(iter([]))
    (600, None)
    """
    if isinstance(data, Watching):
        data = data.watched
    try:
        if isinstance(data, DataLoader):
            if data.batch_size is not None and data.drop_last:
                return len(data) * data.batch_size
            return len(data.sampler) if data.batch_size is not None else None  # type: ignore[arg-type]
        if is_table(data):
            return len(_parts(data)[0])
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            return len(data)  # type: ignore[arg-type]
        if isinstance(data, (list, tuple)):
            return sum(size(split(batch)[0]) for batch in data)
    except Exception:  # of the user's sampler or batch; reading the data will raise it again
        return None
    return None


def is_table(data: Any) -> bool:
    """Whether the data are whole tensors with a row per datum, rather than batches.

    >>> is_table((torch.zeros(2), torch.zeros(2))), is_table([torch.zeros(2)])
    (True, False)
    """
    if isinstance(data, Tensor):
        return True
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, tuple) else ()
    return bool(parts) and all(isinstance(part, Tensor) for part in parts)


class Columns(Dataset):
    """The rows of a mapping of tensors, each a mapping, for a DataLoader.

    >>> Columns({"x": torch.zeros(2, 3)})[0]["x"].shape
    torch.Size([3])
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


class Watching:
    """An iterable over the batches of other data, with the same length."""

    watched: Any


def _parts(data: Any) -> list[Tensor]:
    return [data] if isinstance(data, Tensor) else list(data.values() if isinstance(data, Mapping) else data)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _precision(model: nn.Module | None) -> torch.dtype:
    own = (p.dtype for p in model.parameters() if p.is_floating_point()) if isinstance(model, nn.Module) else ()
    return next(iter(own), torch.get_default_dtype())


def _tensors(value: Any, dtype: torch.dtype) -> Any:
    """The same nesting with arrays converted to tensors."""

    def tensor(leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        made = torch.as_tensor(np.ascontiguousarray(leaf) if np.ndim(leaf) else leaf)  # no negative strides
        return made.to(dtype) if made.is_floating_point() else made

    return _mapped(tensor, value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The same nesting with a function applied to its leaves; unchanged tuples and lists stay the same objects."""
    if isinstance(value, Mapping):
        return {key: _mapped(function, part) for key, part in value.items()}
    if not isinstance(value, (tuple, list)):
        return function(value)
    parts = [_mapped(function, part) for part in value]
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
