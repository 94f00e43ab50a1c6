"""What a record must say so that somebody else can make it again, and can tell whether two records compare."""

from __future__ import annotations

import json
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import viscos
from viscos import runs
from viscos.core.errors import InputError
from viscos.core.version import __version__
from viscos.runs import own_files


def provenance(cfg: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Settings, seed, versions, digests of the files that the settings name, the code's commit (None where it is not
    known) and the machine; plain.
    """
    files = own_files.digests(cfg)
    return {
        "seed": cfg["seed"],
        "versions": versions(),
        "commit": commit(),
        "machine": machine(device),
        "config": runs.essence(cfg),
        **({"files": files} if files else {}),
    }


def machine(device: torch.device) -> dict[str, Any]:
    """The machine that a run was computed on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": device.type, "processor": name, "threads": torch.get_num_threads()}


@cache
def commit() -> str | None:
    """The commit of the source tree that is running, with `+` if files differ from it; None outside of one.

    As it was when it was first asked for: a script whose record lies in the tree changes that itself.
    """
    tree = Path(viscos.__path__[0]).parent
    if not (tree / ".git").exists():  # an installed package may lie in somebody else's repository
        return None
    try:
        name = _git(tree, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(tree, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def continued(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The record at `path` that a script is to go on with, plain; empty if there is none yet.

    Raises `InputError` for one that was made by other settings: what it holds would not stand beside what is measured.
    """
    if not path.is_file():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        made = dict(record["settings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is no record with its settings; give another file: --record") from error
    other = [key for key in (made | settings) if made.get(key) != settings.get(key)]
    if other:
        seen, asked = (", ".join(f"{key}={of.get(key)}" for key in other) for of in (made, settings))
        raise InputError(f"{path} is of {seen}, and not of {asked}; take the same, or another file: --record")
    return record


def _git(tree: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(tree), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """The versions of what a record depends on."""
    return {"viscos": __version__, "torch": str(torch.__version__)}
