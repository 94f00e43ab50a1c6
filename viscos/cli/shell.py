"""Completion in bash, read from the YAML files alone so that it answers at once."""

from __future__ import annotations

from viscos.cli.outline import COMMANDS, choices, outline, settings
from viscos.cli.words import known
from viscos.core.errors import InputError

_SCRIPT = r"""_viscos_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" prefix="" IFS=$'\n'
    local word="${line##* }"
    # Where = separates words, bash replaces only what stands behind it.
    [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]] && prefix="${word%=*}="
    COMPREPLY=($("${COMP_WORDS[0]}" --complete "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
}
complete -o nospace -o default -F _viscos_complete viscos"""

_GLOBAL_FLAGS = ("--help", "--version", "--completion")
_FLAGS = ("--help", "--multirun", "--cfg")


def script(shell: str) -> str:
    """The script to `eval` in `shell`."""
    if shell != "bash":
        raise InputError(f"there is completion for bash only, not for {shell!r}")
    return _SCRIPT


def candidates(line: str) -> list[str]:
    """What the last word of `line` can become; `line` is all that was typed up to the cursor."""
    *before, word = line.split(" ")
    before = [part for part in before if part]
    if len(before) <= 1:
        found = [f"{command} " for command in COMMANDS] + [f"{flag} " for flag in _GLOBAL_FLAGS]
    elif before[1] not in COMMANDS:
        found = ["bash "] if before[1] == "--completion" else []
    elif before[-1] == "--cfg":
        found = ["job "]
    elif word.startswith("-"):
        found = [f"{flag} " for flag in _FLAGS]
    elif "=" in word:
        found = _values(before[1], word.partition("=")[0])
    else:
        found = _keys(before[1], before[2:], word)
    return [candidate for candidate in found if candidate.startswith(word)]


def _values(command: str, key: str) -> list[str]:
    if key in {part.name for part in outline(command).parts}:
        return [f"{key}={choice} " for choice in choices(key)]
    return [f"{key}={value} " for value in known(key)]


def _keys(command: str, overrides: list[str], word: str) -> list[str]:
    parts = {part.name: part.default for part in outline(command).parts}
    chosen = dict(override.split("=", 1) for override in overrides if "=" in override)
    part, dot, _ = word.partition(".")
    if dot and part in parts:
        choice = chosen.get(part, parts[part])
        found = settings(part, choice) if choice in choices(part) else {}
        return [f"{part}.{key}=" for key in found if not key.startswith("_")]
    return [f"{option.name}=" for option in outline(command).options] + [f"{name}=" for name in parts]
