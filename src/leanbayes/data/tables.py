"""Tables of the user: .csv and .parquet files as columns of text, and their columns as numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..optional import require
from .limits import open_regular
from .preparation import Preparation

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_MOST_CATEGORIES = 100
_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class Table:
    """The cells of a file as text, by column; `lines` are the line numbers of its rows."""

    path: Path
    columns: dict[str, np.ndarray]
    lines: np.ndarray

    def __len__(self) -> int:
        return len(self.lines)

    def rows(self, index: np.ndarray) -> Table:
        """The rows at some positions."""
        return Table(self.path, {name: cells[index] for name, cells in self.columns.items()}, self.lines[index])


def read_table(path: Path) -> Table:
    """The cells of a .csv or .parquet file. A .csv without a header has columns "0", "1", ...

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("size,colour\\n1.5,red\\n2,blue\\n")
    ...     read_table(Path(folder, "a.csv")).columns["colour"].tolist()
    ['red', 'blue']
    """
    names, rows, lines = _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path)
    if not rows:
        raise DataError(f"{path}: expected rows of data, received {'a header alone' if names else 'an empty file'}")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{path}: expected columns of different names, received {repeated!r} twice; rename one")
    columns = {name: np.array([row[at] for row in rows], dtype=object) for at, name in enumerate(names)}
    return Table(path, columns, np.array(lines))


def _csv(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig")
        delimiter = max(_DELIMITERS, key=text[: text.find("\n") if "\n" in text else None].count)
        reader = csv.reader(text.splitlines(), delimiter=delimiter, skipinitialspace=True, strict=True)
        found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected text in UTF-8, received other bytes at {error.start}; save it as UTF-8"
        ) from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: expected a readable .csv file ({error})") from error
    if not found:
        return [], [], []
    width = len(found[0][1])
    if ragged := next(((line, row) for line, row in found if len(row) != width), None):
        raise DataError(
            f"{path}, line {ragged[0]}: expected {width} cells as in the first line, received {len(ragged[1])}"
        )
    header = not all(_is_number(cell) or _is_missing(cell) for cell in found[0][1])
    names = found[0][1] if header else [str(at) for at in range(width)]
    if header and "" in names:
        raise DataError(f"{path}: expected a name for every column, received none for column {names.index('') + 1}")
    body = found[1:] if header else found
    return names, [row for _, row in body], [line for line, _ in body]


def _parquet(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    require("pyarrow", "tables", "parquet files")
    import pyarrow.parquet

    try:
        with open_regular(path) as file:
            table = pyarrow.parquet.read_table(file)
    except Exception as error:  # pyarrow has many words for a damaged file
        raise DataError(f"{path}: expected a readable .parquet file ({str(error)[:200]})") from error
    columns = [["" if value is None else str(value) for value in column.to_pylist()] for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return list(table.column_names), rows, list(range(1, len(rows) + 1))


def categories_of(table: Table, name: str) -> tuple[str, ...]:
    """The different texts of a column, sorted; empty for a column of numbers."""
    cells = [cell for cell in table.columns[name] if not _is_missing(cell)]
    if not cells:
        raise DataError(f"{table.path}: column {name!r}: expected values, received none; leave it out: drop {name}")
    wrong = [at for at, cell in enumerate(cells) if not _is_number(cell)]
    if not wrong:
        return ()
    if len(wrong) < 0.1 * len(cells):
        line = next(n for n, c in zip(table.lines, table.columns[name], strict=True) if c == cells[wrong[0]])
        raise DataError(
            f"{table.path}, line {line}: column {name!r}: expected a number as in most rows, received "
            f"{cells[wrong[0]]!r:.40}; correct it, or leave the column out: drop {name}"
        )
    if all(cell.count(",") == 1 and _is_number(cell.replace(",", ".")) for cell in cells):
        raise DataError(
            f"{table.path}: column {name!r}: expected decimal points, received {cells[0]!r}; replace commas"
        )
    found = sorted(set(cells))
    if len(found) > min(_MOST_CATEGORIES, max(0.5 * len(cells), 10)):
        raise DataError(
            f"{table.path}: column {name!r}: expected numbers or a few different texts, received {len(found)} "
            f"different ones in {len(cells)} rows, such as {found[0]!r:.40}; leave it out: drop {name}"
        )
    return tuple(found)


def numbers(table: Table, name: str, *, fill: bool) -> np.ndarray:
    """A column as float64; missing values are NaN with `fill`, otherwise an error."""
    cells = table.columns[name]
    values = np.array([_number(cell) for cell in cells], dtype=np.float64)
    bad = np.array([not _is_missing(c) and not math.isfinite(v) for c, v in zip(cells, values, strict=True)])
    if bad.any():
        at = int(bad.argmax())
        raise DataError(
            f"{table.path}, line {table.lines[at]}: column {name!r}: expected a finite number, "
            f"received {cells[at]!r:.40}"
        )
    if np.isnan(values).any() and not fill:
        raise _missing(table, name, np.isnan(values))
    return values


def encode(table: Table, preparation: Preparation) -> np.ndarray:
    """The unscaled inputs of every row (n, features), float64: numbers, and 0 or 1 for each category."""
    if absent := [name for name in preparation.columns if name not in table.columns]:
        raise DataError(
            f"{table.path}: expected the columns that the model was trained on, received none called "
            f"{', '.join(map(repr, absent[:5]))}; it has {_listed(table.columns)}"
        )
    fill, features = preparation.missing == "fill", []
    for name, known in zip(preparation.columns, preparation.categories, strict=True):
        if not known:
            features.append(numbers(table, name, fill=fill)[:, None])
            continue
        cells = table.columns[name]
        empty = np.array([_is_missing(cell) for cell in cells])
        if empty.any() and not fill:
            raise _missing(table, name, empty)
        unknown = ~empty & ~np.isin(cells.astype(str), known)
        if unknown.any() and not fill:
            at = int(unknown.argmax())
            raise DataError(
                f"{table.path}, line {table.lines[at]}: column {name!r}: expected one of the texts of training, "
                f"{_listed(known)}, received {cells[at]!r:.40}; correct it, or train with missing='fill'"
            )
        features.append((cells.astype(str)[:, None] == np.array(known)[None]).astype(np.float64))
    return np.concatenate(features, axis=1)


def _missing(table: Table, name: str, where: np.ndarray) -> DataError:
    return DataError(
        f"{table.path}, line {table.lines[int(where.argmax())]}: column {name!r}: expected a value, received none "
        f"({int(where.sum())} of {len(where)} rows have none); fill them, drop the column, or read with missing='fill'"
    )


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan if _is_missing(cell) else math.inf


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return not _is_missing(cell)


def _is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def _listed(names: Iterable[Any], most: int = 8) -> str:
    known: Sequence[str] = [str(name) for name in names]
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
