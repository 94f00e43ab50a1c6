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
            lines.append(_line([_method(row), *(_text(figure) + _letter(figure, marks) for figure in row.figures)]))
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
            for rate, figure in zip(table.rates, row.figures, strict=True):
                source = "paper" if row.of_paper else "run"
                write([table.spec.key, row.method, source, f"{rate:g}", *_fields(figure)])
    return out.getvalue()


FORMATS: dict[str, Callable[[tuple[Table, ...], str], str]] = {"markdown": markdown, "latex": latex, "csv": as_csv}


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _method(row: Row) -> str:
    return f"{row.method} (paper)" if row.of_paper else row.method


def _marks(table: Table) -> dict[str, str]:
    """A letter for each of the marks in a table."""
    found = dict.fromkeys(figure.mark for row in table.rows for figure in row.figures if figure and figure.mark)
    return {mark: ascii_lowercase[number % 26] * (1 + number // 26) for number, mark in enumerate(found)}


def _letter(figure: Cell | None, marks: dict[str, str]) -> str:
    return f" ({marks[figure.mark]})" if figure and figure.mark else ""


def _compared(table: Table) -> str:
    """What is bold: numbers that different networks judge are not compared."""
    judges = {figure.network for row in table.rows for figure in row.figures if figure and row.competes}
    return "the best in bold" if len(judges) <= 1 else "the best by each network in bold"


def _tex_rows(table: Table, marks: dict[str, str]) -> list[str]:
    """The lines of the body, with a rule before the first row and where the paper's rows end."""
    columns = [[row.figures[k] if row.competes else None for row in table.rows] for k in range(len(table.rates))]
    bold, lines = [best(table.spec, column) for column in columns], list[str]()
    for number, row in enumerate(table.rows):
        if not number or table.rows[number - 1].of_paper != row.of_paper:
            lines.append(r"\midrule")
        cells = [
            (rf"\textbf{{{text}}}" if number in bold[k] else text) + _letter(figure, marks)
            for k, figure in enumerate(row.figures)
            for text in [_text(figure, r" $\pm$ ", "--")]
        ]
        lines.append(" & ".join([_tex(_method(row)), *cells]) + r" \\")
    return lines


def _tex(text: str) -> str:
    escaped = re.sub(r"[\\~^]|[%_&#${}]", lambda found: _TEX.get(found[0], "\\" + found[0]), text)
    return escaped.replace(ABSENT, "--")


def _text(figure: Cell | None, between: str = " ± ", absent: str = ABSENT) -> str:
    if figure is None:
        return absent
    return figure.mean if figure.spread is None else f"{figure.mean}{between}{figure.spread}"


def _fields(figure: Cell | None) -> list[str]:
    if figure is None:
        return [""] * 6
    items, seeds = ("-".join(map(str, sorted({figure.items[0], figure.items[-1]}))), " ".join(map(str, figure.seeds)))
    return [figure.mean, figure.spread or "", items, seeds, figure.network, figure.mark]
