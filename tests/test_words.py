"""What docstrings must be, and where settings may be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import viscos

ROOT = Path(viscos.__path__[0])
FILES = sorted(path for path in ROOT.rglob("*.py") if "configs" not in path.parts)
DOOR = ("cli", "commands/assemble", "runs/folder.py", "runs/trained.py", "runs/provenance.py")
"""Where settings are read: the command line, what assembles objects from them, and what saves and loads them."""
SUBJECTLESS = re.compile(r"(Of|By|With|As|In|From|To|Under|For|Within|On|At|Over)\b")


def documented() -> Iterator[tuple[str, str, str | None]]:
    """File, name and docstring of every module, class and function."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield str(path.relative_to(ROOT)), getattr(node, "name", "module"), ast.get_docstring(node)


def test_docstrings_have_a_subject_or_a_verb():
    assert [(file, name) for file, name, text in documented() if text and SUBJECTLESS.match(text)] == []


PICTURES = (
    "report/figures",
    "report/calibrated.py",
    "report/compared.py",
    "report/conditionals.py",
    "commands/figure.py",
    "commands/report.py",
    "cli",
)
"""Where there are figures."""


def test_a_figure_is_a_picture_and_never_a_number():
    elsewhere = [path for path in FILES if not str(path.relative_to(ROOT)).startswith(PICTURES)]
    assert len(elsewhere) > 100
    word = re.compile(r"(?<!viscos )(?<!viscos\[)(?<!report\.)(?<!commands\.)figure", re.IGNORECASE)
    assert [str(path.relative_to(ROOT)) for path in elsewhere if word.search(path.read_text(encoding="utf-8"))] == []


def test_every_module_and_public_class_says_what_it_is():
    assert [(file, name) for file, name, text in documented() if not text and (name == "module")] == []
    classes = {
        (str(path.relative_to(ROOT)), node.name)
        for path in FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    }
    assert classes == set()


def readers(path: Path) -> list[str]:
    """The functions of a file that look into settings."""
    found = []
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            names = [node.value for node in ast.walk(function) if isinstance(node, ast.Subscript)]
            if any(isinstance(name, ast.Name) and name.id == "cfg" for name in names):
                found.append(function.name)
    return found


def test_settings_stop_at_the_door():
    """A command's own `run` may look at them too; nothing below it does."""
    inside = [path for path in FILES if not str(path.relative_to(ROOT)).startswith(DOOR)]
    assert len(inside) > 100
    below = {str(path.relative_to(ROOT)) for path in inside if readers(path) not in ([], ["run"])}
    assert below == set()
