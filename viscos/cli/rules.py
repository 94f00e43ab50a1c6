"""Rules for values of settings, each of which says what is wrong with a value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from viscos.cli.words import Word, words

Rule = Callable[[Any], str | None]
"""Says what a value must be if it is not that, otherwise None."""


def integer(low: int) -> Rule:
    """A whole number, `low` or more."""
    return lambda value: None if _is_integer(value) and value >= low else f"must be a whole number, {low} or more"


def number(low: float, high: float = math.inf, *, inside: bool = False) -> Rule:
    """A number from `low` to `high`; strictly between them if `inside`."""

    def check(value: Any) -> str | None:
        good = _is_number(value) and (low < value < high if inside else low <= value <= high)
        if good and math.isfinite(value):
            return None
        if high == math.inf:
            return f"must be a number {'above' if inside else 'of at least'} {low}"
        return f"must be a number {f'above {low} and below' if inside else f'from {low} to'} {high}"

    return check


def one_of(*few: Word) -> Rule:
    """One of a few words, or numbers."""
    return lambda value: None if value in few else f"must be {'one of ' * (len(few) > 1)}{', '.join(map(str, few))}"


def word_of(setting: str) -> Rule:
    """One of the words that the code knows for a setting, which are looked up when there is a value to check."""
    return lambda value: one_of(*words(setting))(value)


def list_of(rule: Rule, example: str = "[1,2]") -> Rule:
    """A list such as the `example`, not empty, each of whose entries follows `rule`."""

    def check(value: Any) -> str | None:
        if not isinstance(value, list) or not value:
            some = "a list of one entry or more" if value == [] else "a list"
            return f"must be {some}, such as {example}; in the shell, quote it if it has spaces"
        return next((f"each entry {complaint}" for complaint in map(rule, value) if complaint), None)

    return check


def either(first: Rule, second: Rule) -> Rule:
    """What one of two rules asks for."""

    def check(value: Any) -> str | None:
        one, other = first(value), second(value)
        return f"{one} or {other.removeprefix('must be ')}" if one and other else None

    return check


def optional(rule: Rule) -> Rule:
    """Null, or what `rule` asks for."""

    def check(value: Any) -> str | None:
        complaint = None if value is None else rule(value)
        return complaint and f"{complaint}, or null"

    return check


def sign(value: Any) -> str | None:
    """One character."""
    return None if isinstance(value, str) and (len(value) == 1 or value == "tab") else "must be one sign"


def flag(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else "must be true or false"


def text(value: Any) -> str | None:
    """A word or a path."""
    return None if isinstance(value, str) and value else "must be a word or a path"


def empty(value: Any) -> str | None:
    """A list without entries."""
    return None if value == [] else "must be []"


def device(value: Any) -> str | None:
    """A device's name; whether it is there is found out later."""
    good = isinstance(value, str) and re.fullmatch(r"auto|cpu|cuda(:\d+)?", value)
    return None if good else "must be cpu, cuda, cuda:<number> or auto"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
