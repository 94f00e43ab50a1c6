"""How a terminal says how far completions can be trusted."""

from __future__ import annotations

from typing import Any

from viscos.inference.diagnosis import WORDS


def trust_lines(record: dict[str, Any]) -> list[str]:
    """A record's verdicts on its items, a line or two; none of a record without."""
    found = record.get("trust")
    if found is None:
        return []
    if not found["weighed_draws"]:
        return ["trust                       not judged; proposals=64 judges each item by 64 draws"]
    counts = ", ".join(f"{found[word]} {word}" for word in WORDS)
    lines = [f"trust                       {counts}, by {found['weighed_draws']} weighed draws of each item"]
    if (first := found.get("first_doubtful")) is not None:
        which = f"row {first['row']}" if "row" in first else f"item {first['item']}"
        lines.append(f"  the first that is doubtful: {which}, {first['reason']}; all are in trust.csv")
    if "refine" in found:
        rate = f", {100 * found['acceptance']:.3g} % accepted" if "acceptance" in found else ""
        lines.append(f"  refined by {found['refine']}: {found['distinct_draws']:.3g} different draws an item{rate}")
    return lines
