"""What was measured of each test item, in a file for comparisons item by item."""

from __future__ import annotations

import math
from pathlib import Path

from torch import Tensor

from viscos.commands.lines import write_lines
from viscos.data.dialect import Dialect
from viscos.data.items import Data

FILE = "items.csv"


def save(folder: Path, test: Data, observed: Tensor, per_item: dict[str, Tensor]) -> None:
    """Writes a line for each item of `test` under the masks `observed` (N, …): its number, its label if it has one, how
    many entries are scored, and the numbers `per_item` (n ≤ N,); a cell is empty where an item has none.

    Writes nothing where there are no such numbers: nothing was hidden.
    """
    if not per_item:
        return
    scored = (~observed & test.known).flatten(1).sum(1).tolist()
    labels = {} if test.labels is None else {"label": test.labels.tolist()}
    columns = labels | {"entries": scored} | {name: _cells(numbers, len(test)) for name, numbers in per_item.items()}
    write_lines(folder / FILE, ("item", *columns), zip(range(len(test)), *columns.values(), strict=True), Dialect())


def _cells(numbers: Tensor, count: int) -> list[str]:
    shown = ["" if math.isnan(number) else f"{number:.7g}" for number in numbers.tolist()]
    return shown + [""] * (count - len(shown))
