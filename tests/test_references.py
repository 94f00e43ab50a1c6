"""References to the paper: each number in the code is the one that LaTeX prints, and stands in one table."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import viscos

REFERENCES = {
    "sec:method": ("section 2", ()),
    "eq:lpdf_base": ("equation 1", ("flows/flow.py",)),
    "eq:inv_schur_compelement": ("equation 2", ("roots/equation.py",)),
    "eq:det_schur_complement": ("equation 3", ("logdet/estimators.py",)),
    "reparametrization_H": ("equation 4", ("roots/equation.py",)),
    "reparametrization_O": ("equation 5", ("roots/equation.py",)),
    "eq:elbo": ("equation 7", ("inference/elbo.py",)),
    "sec:solver": ("section 2.2", ("roots/equation.py", "roots/fixed_point.py", "roots/path.py")),
    "algo:fpalgo": (
        "algorithm 1",
        ("roots/anderson.py", "roots/fixed_point.py", "roots/named.py", "roots/path.py"),
    ),
    "theorem1": ("theorem 1", ("roots/fixed_point.py",)),
    "eq:naive_ldj": ("equation 8", ("logdet/estimators.py",)),
    "eq:diff_ldj": ("equation 9", ("logdet/estimators.py",)),
    "algo1": ("algorithm 2", ("inference/elbo.py",)),
    "sec:experiment": ("section 3", ("linear/neumann.py", "roots/fixed_point.py")),
    "appendix:lemma1": ("appendix A", ()),
    "appendix:vp": ("appendix C", ("posteriors/posterior.py",)),
    "eq:hh": ("equation 13", ("posteriors/gaussian.py",)),
    "appendix:implicit_nf": ("appendix D", ("flows/iresnet.py", "flows/reversed.py")),
}
"""For a label of the paper's source, what LaTeX makes of it, and the modules that refer to it, by package and file."""

PACKAGE = Path(viscos.__file__).parent
ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TEX = Path(os.environ.get("VISCOS_PAPER", ROOT.parent / "shared" / "paper" / "viscos_flows.tex"))

_NUMBER = r"(?:[A-D]|\d+)(?:\.\d)?\b"
_REFERENCE = re.compile(
    rf"\b(equation|section|appendix|algorithm|theorem)s?\s+({_NUMBER}(?:(?:, | and | to ){_NUMBER})*)", re.I
)
_OF_ANOTHER = re.compile(r"\d{4}\)?, $")
"""What stands before a section of another paper: (Rezende and Mohamed, 2015, section 4.1)."""


def referred(text: str) -> set[str]:
    """What a text refers to in the paper, as `equation 7`."""
    found = set()
    for match in _REFERENCE.finditer(text):
        before, after = text[: match.start()][-8:], text[match.end() :][:6]
        if not _OF_ANOTHER.search(before) and not re.match(r"\s+there", after):
            found |= {f"{match[1].lower()} {number}" for number in re.findall(_NUMBER, match[2])}
    return found


def test_references_are_found():
    assert referred("the bound (equation 7); equations 8 and 9, section\n2.2") == {
        "equation 7",
        "equation 8",
        "equation 9",
        "section 2.2",
    }
    assert not referred("(Rezende and Mohamed, 2015, section 4.1), Glow (2018), section 3.1, theorem 2 there")


def test_modules_refer_to_what_the_table_says():
    used = {(number, module) for number, modules in REFERENCES.values() for module in modules}
    found = {
        (number, f"{path.relative_to(PACKAGE).parts[0]}/{path.name}")
        for path in PACKAGE.rglob("*.py")
        for number in referred(path.read_text(encoding="utf-8"))
    }
    assert found == used


@pytest.mark.skipif(not PAGES, reason="the pages are not beside the tests")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_refer_to_numbers_of_the_table(page):
    assert referred(page.read_text(encoding="utf-8")) <= {number for number, _ in REFERENCES.values()}


_TOKEN = re.compile(
    r"\\(?P<part>appendix|section|subsection)\b|\\(?P<edge>begin|end)\{(?P<name>[\w*]+)\}"
    r"|\\label\{(?P<label>[^}]*)\}|(?P<row>\\\\)|\\(?P<unnumbered>nonumber|notag)\b"
)
_COUNTED = {"equation": "equation", "multline": "equation", "align": "equation"}
_COUNTED |= {"algorithm": "algorithm", "theorem": "theorem"}


def numbered(tex: str) -> dict[str, str]:
    """The number of each label as LaTeX gives it: one for each row of an align, none for a starred environment."""
    text = re.sub(r"(?<!\\)%.*", "", tex).partition(r"\begin{document}")[2].partition(r"\end{document}")[0]
    counts = dict.fromkeys(("section", "subsection", *_COUNTED.values()), 0)
    part, current, inner, labels = "section", "", [], {}
    for token in _TOKEN.finditer(text):
        assert not token["unnumbered"], "a row without a number, which is not counted here"
        kind = _COUNTED.get(token["name"]) if token["edge"] == "begin" else None
        if token["row"] and inner and inner[-1] == "align":
            kind = "equation"
        if token["edge"] == "begin":
            inner.append(token["name"])
        elif token["edge"] == "end":
            assert inner.pop() == token["name"]
        if kind:
            counts[kind] += 1
            current = f"{kind} {counts[kind]}"
        elif token["part"] == "appendix":
            part, counts["section"] = "appendix", 0
        elif token["part"]:
            counts[token["part"]] += 1
            counts["subsection"] *= token["part"] == "subsection"
            number = chr(64 + counts["section"]) if part == "appendix" else str(counts["section"])
            current = f"{part} {number}" + (f".{counts['subsection']}" if counts["subsection"] else "")
        elif token["label"]:
            labels[token["label"]] = current
    return labels


def test_rows_are_counted_as_latex_counts_them():
    labels = numbered(r"""\begin{document} \section{A}\label{s} \begin{equation*} \end{equation*}
    \begin{align} \label{a} x \\ y \label{b} \end{align} \begin{equation} \begin{aligned} u \\ v \end{aligned} \label{c}
    \end{equation} \subsection{B}\label{t} \begin{multline} \label{d} \end{multline} \appendix \section{C}\label{u}
    \end{document}""")
    assert labels == {
        "s": "section 1",
        "a": "equation 1",
        "b": "equation 2",
        "c": "equation 3",
        "t": "section 1.1",
        "d": "equation 4",
        "u": "appendix A",
    }


@pytest.mark.skipif(not TEX.is_file(), reason="the paper's source is not at hand; VISCOS_PAPER may name it")
def test_the_table_has_the_papers_numbers():
    labels = numbered(TEX.read_text(encoding="utf-8"))
    assert {label: labels.get(label) for label in REFERENCES} == {
        label: number for label, (number, _) in REFERENCES.items()
    }
