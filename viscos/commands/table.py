"""`viscos table`: the paper's tables from the records of runs."""

from __future__ import annotations

from typing import Any

from viscos.report import formats, tables
from viscos.runs import records


def run(cfg: dict[str, Any]) -> str:
    """Prints the tables, and saves the records behind them if asked to; returns the text."""
    folders = [cfg["runs"]] if isinstance(cfg["runs"], str) else cfg["runs"]
    found = records.read(folders, cfg["by"])
    text = formats.FORMATS[cfg["format"]](tables.tables(found), tables.provenance(found))
    print(text, end="")
    if cfg["save"] is not None:
        records.save(found, cfg["save"])
    return text
