"""Files of comma-separated values that stand beside completions, in the signs of the table that was completed."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from viscos.core import atomic
from viscos.data.dialect import Dialect


def write_lines(path: Path, header: Iterable[str], lines: Iterable[Iterable[object]], signs: Dialect) -> None:
    """Writes a header and lines of cells as UTF-8, with the delimiter of `signs`; the cells are as they will stand."""

    def writer(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            sheet = csv.writer(file, delimiter=signs.delimiter or ",", lineterminator="\n")
            sheet.writerow(header)
            sheet.writerows(lines)

    atomic.write(path, writer)
