"""One number of a table: as it is printed, what it was measured on, and what sets it apart from the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viscos.core.counts import percent
from viscos.core.labels import Measure
from viscos.report.advice import FAILED

UNPUBLISHED = "unpublished"
"""The network behind the paper's FIDs and accuracies."""
BY_NETWORK = ("fid", "accuracy_complete")
"""Numbers that a network judges, and that compare only where it is the same one."""


@dataclass(frozen=True)
class Cell:
    """A number, or the mean of those of several seeds."""

    mean: str
    """As it is printed."""
    spread: str | None = None
    """Standard deviation over the seeds, if there are several."""
    items: tuple[int, ...] = ()
    """Numbers of items that it was measured on, ascending."""
    seeds: tuple[int, ...] = ()
    network: str = ""
    """Digest of the network that judges, if one does."""
    mark: str = ""
    """What sets it apart from the others in its table, if anything does."""


Entry = tuple[int, float, dict[str, Any]]
"""The seed of a record, one of its numbers, and all that the record says of that."""


def cell(spec: Measure, entries: Sequence[Entry], items: int, level: str | None) -> Cell | None:
    """The number of a kind of completion at a rate; None of no entries.

    `items` is what an entry was measured on that does not say so, `level` the nominal one that the title names.
    """
    if not entries:
        return None
    values, said = [value for _, value, _ in entries], [entry for _, _, entry in entries]
    networks = {str(entry.get("extractor_sha256", entry.get("classifier_sha256", ""))) for entry in said}
    return Cell(
        f"{statistics.fmean(values):.{spec.decimals}f}",
        f"{statistics.stdev(values):.{spec.decimals}f}" if len(values) > 1 else None,
        tuple(sorted({int(entry.get("items", items)) for entry in said})),
        tuple(sorted(seed for seed, _, _ in entries)),
        ", ".join(sorted(networks - {""})),
        "; ".join(filter(None, (_other_level(said, level), _without(said)))),
    )


def printed(spec: Measure, text: str, items: int) -> Cell:
    """A number of the paper."""
    return Cell(text, items=(items,), network=UNPUBLISHED if spec.key in BY_NETWORK else "")


def nominal(entry: dict[str, Any]) -> str | None:
    """The level of an entry's intervals in per cent; draws that failed lower it by fractions."""
    level = entry.get("nominal")
    return None if level is None else f"{100 * level:.0f}"


def most_items(cells: Iterable[Cell | None]) -> int:
    """The most items that a cell of a table was measured on."""
    return max((items for each in cells if each for items in each.items), default=0)


def set_apart(spec: Measure, found: Cell | None, most: int) -> Cell | None:
    """The cell with a mark if it is an FID of fewer items than another in its table: the fewer, the larger it is."""
    if found is None or spec.key != "fid" or not found.items or found.items[0] >= most:
        return found
    few = f"of {_range(found.items)} images, and FID is larger of fewer"
    return replace(found, mark="; ".join(filter(None, (few, found.mark))))


def best(spec: Measure, column: Sequence[Cell | None]) -> set[int]:
    """The places of the best cells of a column, as they are printed.

    What has a mark does not compete, and numbers that networks judge compete where it is the same network.
    """
    found, judges = set[int](), {each.network for each in column if each}
    for judge in judges:
        scores = {
            place: _score(spec, float(each.mean))
            for place, each in enumerate(column)
            if each and each.network == judge and not each.mark
        }
        found |= {place for place, score in scores.items() if score == max(scores.values())}
    return found


def _score(spec: Measure, value: float) -> float:
    """The higher, the better."""
    if spec.better.startswith("nearer to "):
        return -abs(value - float(spec.better.removeprefix("nearer to ")))
    return value if spec.better == "higher" else -value


def _other_level(said: list[dict[str, Any]], level: str | None) -> str:
    levels = sorted({found for entry in said if (found := nominal(entry)) is not None})
    return "" if level is None or levels in ([], [level]) else f"of {' % and '.join(levels)} % intervals"


def _without(said: list[dict[str, Any]]) -> str:
    """Which shares of the items, and of the draws of the others, failed and were left out, where large enough to be a
    selection.
    """
    counted = [(entry.get("items") or 0, entry.get("draws") or 0) for entry in said]
    items, draws = (sum(entry.get(f"failed_{what}_left_out") or 0 for entry in said) for what in ("items", "draws"))
    shares = {
        "items": items / max(1, items + sum(count for count, _ in counted)),
        "draws": draws / max(1, sum(count * each for count, each in counted)),
    }
    large = " and ".join(f"{percent(share)} of {what}" for what, share in shares.items() if share > FAILED)
    return f"without the {large} whose solves failed" if large else ""


def _range(numbers: tuple[int, ...]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
