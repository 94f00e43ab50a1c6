"""Imputers of one flow beside each other: what their completions are worth, against what they cost."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

_OURS = "viscos"
_WORTH = "RMSE: mean", "one draw", "energy score"
_COSTS = {"passes_a_draw": "passes a draw", "seconds_a_draw": "seconds a draw"}
_PLACES = [(cost, worth) for worth in ("rmse", "energy") for cost in _COSTS]
"""The panels of a row of the picture, by what is across and what is up."""


def table(record: dict[str, Any]) -> str:
    """Tables in Markdown, two for each case of a record: of the items that all methods completed, and of more."""
    return "\n".join(_tables(title, case["methods"], record["settings"]) for title, case in record["cases"].items())


def _tables(title: str, methods: dict[str, Any], settings: dict[str, Any]) -> str:
    few, many = settings["first"], settings["items"]
    heads = {
        "first": (
            "RMSE: mean",
            "one draw",
            "energy score",
            "90 % intervals cover",
            "off where observed",
            *_COSTS.values(),
            "failed",
        ),
        "all": (*_WORTH, "spread over skill", "FID of a draw"),
    }
    words = {
        "first": f"the first {few} digits, {next(iter(methods.values()))['first']['draws']} draws of each",
        "all": f"the first {many} digits, {settings['draws']} draws of each",
    }
    parts = []
    for size, columns in heads.items():
        rows = [(found["label"], _row(found, size)) for found in methods.values() if found[size] is not None]
        lines = [f"| {title}, {words[size]} | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
        parts.append("\n".join([*lines, *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows)]) + "\n")
    return "\n".join(parts)


def _row(found: dict[str, Any], size: str) -> list[str]:
    of = found[size]
    cells = [f"{of['rmse']:.4f}", f"{of['rmse_draw']:.4f}", _with_error(of["energy"])]
    if size == "all":
        fid = of["fid"]
        return [*cells, _with_error(of["spread_skill"]), "—" if fid is None else f"{fid:.1f}"]
    covered = of["coverage"]["nominal"] > 0.85
    off = found["notes"].get("observed_error")
    return [
        *cells,
        _with_error(of["coverage"]) if covered else "—",
        "0" if off is None else f"{off:.3f}",
        f"{found['passes_a_draw']:.0f}",
        f"{found['seconds_a_draw']:.2g}",
        f"{100 * found['failed']:.1f} %",
    ]


def _with_error(number: dict[str, Any]) -> str:
    if number["value"] is None:
        return "—"
    return f"{number['value']:.3f}" + (f" ± {number['standard_error']:.3f}" if number["standard_error"] else "")


def own_name(name: str) -> str:
    """The name of a method without the settings behind it, as in `dps,steps=157`."""
    return name.partition(",")[0]


def pictures(record: dict[str, Any]) -> Figure:
    """A row a case: RMSE of the mean and energy score of the items that all completed, against passes and seconds.

    A method with several settings is a line.
    """
    cases = record["cases"]
    figure = Figure((11, 2.4 * len(cases)), layout="constrained")
    axes = figure.subplots(len(cases), 4, squeeze=False, sharex="col")
    for row, (title, case) in zip(axes, cases.items(), strict=True):
        for axis, (cost, worth) in zip(row, _PLACES, strict=True):
            _panel(axis, list(case["methods"].items()), cost, worth)
        row[0].set_ylabel(f"{title}\nRMSE of the mean", fontsize=8)
        row[2].set_ylabel("energy score", fontsize=8)
    for axis, (cost, _) in zip(axes[-1], _PLACES, strict=True):
        axis.set_xlabel(_COSTS[cost], fontsize=8)
        low, high = axis.get_xlim()
        axis.set_xlim(low, 1.5 * high)  # room for the last label
    return figure


def _panel(axis: Axes, methods: list[tuple[str, dict[str, Any]]], cost: str, worth: str) -> None:
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.margins(0.2)
    axis.tick_params(labelsize=7)
    lines = dict[str, list[tuple[float, float]]]()
    labels = dict[str, str]()
    for name, found in methods:
        value = found["first"][worth] if worth == "rmse" else found["first"][worth]["value"]
        if found[cost] and value is not None:
            own = own_name(name)
            lines.setdefault(own, []).append((found[cost], value))
            labels.setdefault(own, found["label"].partition(",")[0])
    for own, points in lines.items():
        color, place = ("tab:red", (3, -8)) if own == _OURS else ("tab:blue", (3, 3))
        axis.plot(*zip(*sorted(points), strict=True), "o-", markersize=4, linewidth=0.8, color=color)
        axis.annotate(labels[own], min(points), place, textcoords="offset points", fontsize=6)
