"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from string import ascii_lowercase

from viscos.report.cells import Cell, best
from viscos.report.tables import Row, Table

ABSENT = "—"
_COLUMNS = ("table", "method", "source", "missing", "value", "standard_deviation", "n", "seeds", "extractor", "mark")
_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def markdown(tables: tuple[Table, ...], behind: str) -> str:
    """Tables one below the other; the paper's rows say that they are."""
    parts = []
    for table in tables:
        marks = _marks(table)
        head = ["missing", *(f"{rate:g}" for rate in table.rates)]
        lines = [f"**{table.spec.title}** ({table.spec.better} is better)", ""]
        lines += [_line(head), _line(["---"] * len(head))]
        for row in table.rows:
            lines.append(_line([_method(row), *(_text(cell) + _letter(cell, marks) for cell in row.cells)]))
        notes = [table.spec.note, *(f"({letter}) {mark}." for mark, letter in marks.items())]
        parts.append("\n".join(lines + [line for note in notes if note for line in ("", note)]))
    return "\n\n".join([*parts, f"{behind}."]) + "\n"


def latex(tables: tuple[Table, ...], behind: str) -> str:
    r"""Floats with `\toprule` and the like of booktabs, the best of each column bold; what is behind is a comment."""
    parts = [f"% {behind.replace('±', '+-')}\n% \\usepackage{{booktabs}} in the preamble"]
    for table in tables:
        marks = _marks(table)
        head = " & ".join(["missing", *(f"{rate:g}" for rate in table.rates)])
        caption = f"{table.spec.title} ({table.spec.better} is better; {_compared(table)})."
        notes = [table.spec.note, *(f"({letter}) {mark}." for mark, letter in marks.items())]
        caption = _tex(" ".join([caption, *filter(None, notes)]))
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{table.spec.key.replace('_', '-')}}}",
            rf"\begin{{tabular}}{{l{'c' * len(table.rates)}}}",
            r"\toprule",
            rf"{head} \\",
            *_tex_rows(table, marks),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def as_csv(tables: tuple[Table, ...], behind: str) -> str:
    """One number a line, with what it is of; empty where there is none. `behind` has no place here."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(_COLUMNS)
    for table in tables:
        for row in table.rows:
            for rate, cell in zip(table.rates, row.cells, strict=True):
                source = "paper" if row.of_paper else "run"
                write([table.spec.key, row.method, source, f"{rate:g}", *_fields(cell)])
    return out.getvalue()


FORMATS: dict[str, Callable[[tuple[Table, ...], str], str]] = {"markdown": markdown, "latex": latex, "csv": as_csv}


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _method(row: Row) -> str:
    return f"{row.method} (paper)" if row.of_paper else row.method


def _marks(table: Table) -> dict[str, str]:
    """A letter for each of the marks in a table."""
    found = dict.fromkeys(cell.mark for row in table.rows for cell in row.cells if cell and cell.mark)
    return {mark: ascii_lowercase[number % 26] * (1 + number // 26) for number, mark in enumerate(found)}


def _letter(cell: Cell | None, marks: dict[str, str]) -> str:
    return f" ({marks[cell.mark]})" if cell and cell.mark else ""


def _compared(table: Table) -> str:
    """What is bold: numbers that different networks judge are not compared."""
    judges = {cell.network for row in table.rows for cell in row.cells if cell and row.competes}
    return "the best in bold" if len(judges) <= 1 else "the best by each network in bold"


def _tex_rows(table: Table, marks: dict[str, str]) -> list[str]:
    """The lines of the body, with a rule before the first row and where the paper's rows end."""
    columns = [[row.cells[k] if row.competes else None for row in table.rows] for k in range(len(table.rates))]
    bold, lines = [best(table.spec, column) for column in columns], list[str]()
    for number, row in enumerate(table.rows):
        if not number or table.rows[number - 1].of_paper != row.of_paper:
            lines.append(r"\midrule")
        cells = [
            (rf"\textbf{{{text}}}" if number in bold[k] else text) + _letter(cell, marks)
            for k, cell in enumerate(row.cells)
            for text in [_text(cell, r" $\pm$ ", "--")]
        ]
        lines.append(" & ".join([_tex(_method(row)), *cells]) + r" \\")
    return lines


def _tex(text: str) -> str:
    escaped = re.sub(r"[\\~^]|[%_&#${}]", lambda found: _TEX.get(found[0], "\\" + found[0]), text)
    return escaped.replace(ABSENT, "--")


def _text(cell: Cell | None, between: str = " ± ", absent: str = ABSENT) -> str:
    if cell is None:
        return absent
    return cell.mean if cell.spread is None else f"{cell.mean}{between}{cell.spread}"


def _fields(cell: Cell | None) -> list[str]:
    if cell is None:
        return [""] * 6
    items, seeds = ("-".join(map(str, sorted({cell.items[0], cell.items[-1]}))), " ".join(map(str, cell.seeds)))
    return [cell.mean, cell.spread or "", items, seeds, cell.network, cell.mark]
