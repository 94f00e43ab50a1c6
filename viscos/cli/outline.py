"""What the YAML files say about themselves, read without Hydra.

Each option and each part in a top-level file carries its meaning as a comment on its line; each choice of a part
has its meaning in its file's first comment. Help, completion and validation all read them here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from viscos.core.choices import OWN, description, names, text

COMMANDS = {
    "train": "train a flow on data with holes",
    "impute": "complete items with a trained flow",
    "eval": "measure a trained flow on its test split",
    "bench": "time the solvers and products, side by side",
    "table": "print the paper's tables, with the numbers of runs",
    "figure": "draw a figure of the paper from a run",
}

_PART = re.compile(r"^  - (\w+): (\w+)  # (.+)$", re.MULTILINE)
_OPTION = re.compile(r"^(\w+): (.+?)  # (.+)$", re.MULTILINE)
_SETTING = re.compile(r"^(  )?(\w+):(?: (.+?))?  # (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """One line of a top-level YAML file."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Outline:
    """A top-level YAML file: what its command does, its parts (config groups) and its options."""

    about: str
    parts: tuple[Option, ...]
    options: tuple[Option, ...]


@cache
def outline(command: str) -> Outline:
    """The outline of `command`."""
    page = files("viscos.configs").joinpath(f"{command}.yaml").read_text(encoding="utf-8")
    parts = tuple(Option(*found) for found in _PART.findall(page))
    return Outline(_comment(page), parts, tuple(Option(*found) for found in _OPTION.findall(page)))


@cache
def choices(part: str) -> dict[str, str]:
    """The choices of a part, each with its meaning."""
    own = (OWN,) if files("viscos.configs").joinpath(part, f"{OWN}.yaml").is_file() else ()
    return {name: _comment(text(part, name)) for name in (*names(part), *own)}


@cache
def overlays(part: str) -> bool:
    """Whether the choices of a part set options beside it, and leave no settings of its own."""
    return all("# @package _global_" in text(part, choice) for choice in choices(part))


@cache
def explained(part: str, choice: str) -> tuple[Option, ...]:
    """The settings that a choice of a part brings, by their full names."""
    found, above = list[Option](), ""
    for inner, name, default, meaning in _SETTING.findall(text(part, choice)):
        above = above if inner else name
        found += [Option(f"{part}.{above}.{name}" if inner else f"{part}.{name}", default, meaning)] if default else []
    return tuple(found)


@cache
def settings(part: str, choice: str) -> dict[str, Any]:
    """The settings that a choice of a part brings."""
    return description(part, choice)


def _comment(page: str) -> str:
    lines = [line[2:] for line in page.splitlines() if line.startswith("# ") and "@package" not in line]
    return lines[0] if lines else ""
