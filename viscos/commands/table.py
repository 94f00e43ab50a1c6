"""`viscos table`: the paper's tables from the records of runs."""

from __future__ import annotations

from typing import Any

from viscos.core.errors import InputError
from viscos.report import formats, tables
from viscos.runs import records


def run(cfg: dict[str, Any]) -> str:
    """Prints the tables, and saves the records behind them if asked to; returns the text."""
    folders = [cfg["runs"]] if isinstance(cfg["runs"], str) else cfg["runs"]
    found = records.read(folders, cfg["by"])
    if not (shown := tables.tables(found)):
        raise InputError(
            "these runs have no number that a table shows: nothing was hidden, or every solve failed; give others"
        )
    text = formats.FORMATS[cfg["format"]](shown, tables.provenance(found))
    if cfg["save"] is not None:  # first: a folder that is refused is all that is said
        records.save(found, cfg["save"])
    print(text, end="")
    return text
