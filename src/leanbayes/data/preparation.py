"""`Preparation`: how raw data become inputs, learned from training data and applied to new data. No torch here.

It is a config, so that `leanbayes train` can write it into a model file and `leanbayes predict` read it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..config import check_choice, check_whole, configurable
from ..errors import ConfigError

_LEAST, _MOST = 2.0**-126, 2.0**127  # the range of float32 in full precision
_MOST_FEATURES, _MOST_ELEMENTS = 100_000, 2**26


@configurable
@dataclass(frozen=True)
class Preparation:
    """The preparation that `leanbayes.data.read` learned from training data.

    source: "table" (columns by name), "array" or "images". input_shape: of one input of the network.
    mean, std: inputs are (x - mean) / std by channel or feature. full_scale: divides whole numbers before that.
    columns: the input columns of a table. categories: the texts of each column, one input each; empty for numbers.
    drop: columns that are left out. missing: "error", or "fill": an empty number is the mean, an empty or unknown
        text none of the known ones. size: the side that images are resized to, or 0.
    target: the column or array of targets. classes: their names in order. y_mean, y_std: of a regression's target.
    """

    source: Literal["table", "array", "images"]
    task: Literal["classification", "regression"]
    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    full_scale: float = 1.0
    columns: tuple[str, ...] = ()
    categories: tuple[tuple[str, ...], ...] = ()
    drop: tuple[str, ...] = ()
    missing: Literal["error", "fill"] = "error"
    size: int = 0
    target: str = ""
    classes: tuple[str, ...] = ()
    y_mean: float = 0.0
    y_std: float = 1.0

    def __post_init__(self) -> None:
        check_choice(self, "source", ("table", "array", "images"))
        check_choice(self, "task", ("classification", "regression"))
        check_choice(self, "missing", ("error", "fill"))
        check_whole(self, "size", at_least=0, at_most=2**14)
        object.__setattr__(self, "categories", tuple(map(tuple, self.categories)))
        sizes = self.input_shape
        if not 1 <= len(sizes) <= 4 or min(sizes) < 1 or math.prod(sizes) > _MOST_ELEMENTS:
            raise ConfigError(f"Preparation.input_shape: expected the sizes of one datum, received {sizes}")
        if len(self.mean) not in (1, sizes[0]) or len(self.mean) != len(self.std) or len(self.mean) > _MOST_FEATURES:
            raise ConfigError(
                f"Preparation: expected a mean and a std for each of {sizes[0]} channels or features, received "
                f"{len(self.mean)} and {len(self.std)}"
            )
        for field, numbers in (("mean", (*self.mean, self.y_mean)), ("std", (*self.std, self.y_std, self.full_scale))):
            low = -_MOST if field == "mean" else _LEAST
            if wrong := [n for n in numbers if not low <= n <= _MOST]:
                raise ConfigError(f"Preparation.{field}: expected finite numbers, received {wrong[0]}")
        if self.source == "table":
            self._check_columns()

    def _check_columns(self) -> None:
        features = sum(len(texts) or 1 for texts in self.categories)
        if len(self.columns) != len(self.categories) or (features,) != self.input_shape:
            raise ConfigError(
                f"Preparation.columns: expected categories for each, {self.input_shape[0]} inputs in all, received "
                f"{len(self.columns)} columns, {len(self.categories)} categories and {features} inputs"
            )
