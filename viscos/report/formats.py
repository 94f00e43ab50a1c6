"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from viscos.report.tables import Cell, Row, Table

ABSENT = "—"


def markdown(tables: tuple[Table, ...], behind: str) -> str:
    """Tables one below the other; the paper's rows say that they are."""
    parts = []
    for table in tables:
        head = ["missing", *(f"{rate:g}" for rate in table.rates)]
        lines = [f"**{table.spec.title}** ({table.spec.better} is better)", ""]
        lines += [_line(head), _line(["---"] * len(head))]
        lines += [_line([_method(row), *(_text(figure, " ± ") for figure in row.figures)]) for row in table.rows]
        parts.append("\n".join(lines + (["", table.spec.note] if table.spec.note else [])))
    return "\n\n".join([*parts, f"{behind}."]) + "\n"


def latex(tables: tuple[Table, ...], behind: str) -> str:
    """Floats that any document class takes, without packages; what is behind them stands as a comment."""
    parts = [f"% {behind.replace('±', '+-')}"]
    for table in tables:
        head = ["missing", *(f"{rate:g}" for rate in table.rates)]
        body = [
            [_tex(_method(row)), *(_text(figure, r" $\pm$ ", "--") for figure in row.figures)] for row in table.rows
        ]
        lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'c' * len(table.rates)}}}", r"\hline"]
        lines += [" & ".join(head) + r" \\", r"\hline", *(" & ".join(cells) + r" \\" for cells in body), r"\hline"]
        note = f" {table.spec.note}" if table.spec.note else ""
        caption = _tex(f"{table.spec.title} ({table.spec.better} is better).{note}")
        parts.append("\n".join([*lines, r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]))
    return "\n\n".join(parts) + "\n"


def as_csv(tables: tuple[Table, ...], behind: str) -> str:
    """One figure a line; empty where there is none. `behind` has no place here."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["table", "method", "source", "missing", "value", "standard_deviation"])
    for table in tables:
        for row in table.rows:
            for rate, figure in zip(table.rates, row.figures, strict=True):
                source = "paper" if row.of_paper else "run"
                write([table.spec.key, row.method, source, f"{rate:g}", *(figure or ("", ""))])
    return out.getvalue()


FORMATS: dict[str, Callable[[tuple[Table, ...], str], str]] = {"markdown": markdown, "latex": latex, "csv": as_csv}


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _method(row: Row) -> str:
    return f"{row.method} (paper)" if row.of_paper else row.method


def _tex(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_")


def _text(figure: Cell | None, between: str, absent: str = ABSENT) -> str:
    if figure is None:
        return absent
    mean, spread = figure
    return mean if spread is None else f"{mean}{between}{spread}"
