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

import yaml

COMMANDS = {
    "train": "train a flow on data with holes",
    "impute": "complete items with a trained flow",
    "eval": "measure a trained flow on its test split",
    "bench": "time the solvers and products, side by side",
    "table": "print the paper's tables, with the figures of runs",
    "figure": "draw a figure of the paper from a run",
}

_PART = re.compile(r"^  - (\w+): (\w+)  # (.+)$", re.MULTILINE)
_OPTION = re.compile(r"^(\w+): (.+?)  # (.+)$", re.MULTILINE)


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
    text = _read(f"{command}.yaml")
    parts = tuple(Option(*found) for found in _PART.findall(text))
    return Outline(_comment(text), parts, tuple(Option(*found) for found in _OPTION.findall(text)))


@cache
def choices(part: str) -> dict[str, str]:
    """The choices of a part, each with its meaning."""
    folder = files("viscos.configs").joinpath(part)
    names = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))
    return {name: _comment(_read(f"{part}/{name}.yaml")) for name in names}


@cache
def overlays(part: str) -> bool:
    """Whether the choices of a part set options beside it, and leave no settings of its own."""
    return all("# @package _global_" in _read(f"{part}/{choice}.yaml") for choice in choices(part))


@cache
def settings(part: str, choice: str) -> dict[str, Any]:
    """The settings that a choice of a part brings."""
    return yaml.safe_load(_read(f"{part}/{choice}.yaml")) or {}


def _read(name: str) -> str:
    return files("viscos.configs").joinpath(name).read_text(encoding="utf-8")


def _comment(text: str) -> str:
    lines = [line[2:] for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
    return lines[0] if lines else ""
