"""Objects from their plain description: a dict with `_target_` and the arguments of what it names.

Descriptions are read from checkpoints too, which may be a stranger's. So whoever builds says what *kind* is wanted, and
nothing is called but what makes that kind: a public class of it, or a function whose annotation says that it returns
one, from the package that defines the kind. Descriptions among the arguments are of the kinds that the parameters are
annotated with. Code outside viscos is neither imported nor called unless its user allowed it by name, see `allowing`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from viscos.core.errors import InputError

T = TypeVar("T")

_allowed: ContextVar[tuple[str, ...]] = ContextVar("allowed", default=())


@contextmanager
def allowing(names: Iterable[str]) -> Iterator[None]:
    """Lets descriptions name code outside viscos: `names`, and what the packages and modules among them define.

    A name counts because a user gave it, on the command line or in Python; never because a file did.
    """
    token = _allowed.set((*_allowed.get(), *names))
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed() -> tuple[str, ...]:
    """The names that `allowing` was given, for another process to be given them too."""
    return _allowed.get()


def described(value: Any) -> bool:
    """Whether a value describes an object."""
    return isinstance(value, dict) and "_target_" in value


def build(spec: dict[str, Any], kind: type[T], *args: Any, **extra: Any) -> T:
    """Calls `spec["_target_"]` with `args`, the other entries (built first where they are descriptions) and `extra`.

    Raises `InputError` for a name that makes no `kind` or that nobody allowed, or an argument that it does not take.
    """
    if "factory" in spec:  # a user's own code, which no description may name
        raise InputError(
            "flow=foreign is for `viscos impute`: a flow of another library is conditioned here, not trained"
        )
    return _build(spec, (kind,), args, extra)


def maker(target: str, kind: type[T]) -> Callable[..., T]:
    """What `target` names: a class of a kind, or a function that returns one. Raises `InputError` as `build` does."""
    return _maker(target, (kind,))


def makes(spec: dict[str, Any], kind: type) -> bool:
    """Whether a description is of a kind, as far as its class is one, or its function says that it returns one."""
    target = str(spec.get("_target_", ""))
    try:
        found: Any = maker(target, kind)
    except InputError:
        if outside(target):
            raise
        return False
    return any(_is_a(made, kind) for made in _made_by(found))


def outside(target: str) -> bool:
    """Whether a name is of code that is not viscos's own."""
    return "." in target and not _within(target, "viscos")


def _build(spec: dict[str, Any], kinds: tuple[type, ...], args: tuple[Any, ...], extra: dict[str, Any]) -> Any:
    target = str(spec.get("_target_", ""))
    make = _maker(target, kinds)
    if kinds and inspect.isclass(make) and not any(_is_a(make, kind) for kind in kinds):
        raise InputError(f"_target_ is {target!r}, which is not {_named(*kinds)}")
    takes = _hints(make.__init__ if inspect.isclass(make) else make)
    given = {key: _part(value, takes.get(key)) for key, value in spec.items() if key != "_target_"}
    given.update(extra)
    _refuse_unless_taken(make, target, args, given)
    made = make(*args, **given)
    if kinds and not any(_is_a(made, kind) for kind in kinds):
        raise InputError(f"{target} returned {_named(type(made))}, not {_named(*kinds)}")
    return made


def _refuse_unless_taken(make: Callable[..., Any], target: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(make)
    except ValueError:  # written in C, of which Python does not know what it takes
        return
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        raise InputError(f"{target} cannot be made from these settings: {error}") from error


def _part(value: Any, hint: Any) -> Any:
    return _build(value, _classes(hint), (), {}) if described(value) else value


def _maker(target: str, kinds: tuple[type, ...]) -> Callable[..., Any]:
    own, wanted = _is_allowed(target), _named(*kinds)
    module, _, name = target.rpartition(".")
    if not own:
        _refuse_unless_of_viscos(target, kinds)
    try:
        with importable_here() if own else nullcontext():
            found = getattr(imported(module), name)
    except AttributeError as error:
        raise InputError(f"_target_ is {target!r}, and {module} has no {name!r}") from error
    if own:
        if not callable(found) or not (target in allowed() or _is_allowed(f"{_home(found)}.{name}")):
            raise InputError(f"_target_ is {target!r}, which {module} does not define; name where it is defined")
        return found
    homes = {_package(kind) for kind in kinds}
    if not any(_within(_home(found), home) for home in homes) or not any(
        _is_a(made, kind) for made in _made_by(found) for kind in kinds
    ):
        raise InputError(f"_target_ is {target!r}, which neither is {wanted} nor says that it returns one")
    return found


def _made_by(found: Any) -> tuple[type, ...]:
    if inspect.isclass(found):
        return (found,)
    return _classes(_hints(found).get("return")) if inspect.isfunction(found) else ()


def _refuse_unless_of_viscos(target: str, kinds: tuple[type, ...]) -> None:
    homes = sorted({_package(kind) for kind in kinds} - {""})
    if outside(target):
        raise InputError(
            f"{target} is code outside viscos, which would be run; if you trust it, say allow={target}, or its package"
        )
    if not any(_within(target, home) for home in homes) or any(word.startswith("_") for word in target.split(".")):
        place = f"a public name in {' or '.join(homes)}" if homes else "a plain value"
        raise InputError(f"_target_ is {target!r}; {_named(*kinds)} must be {place}")


def imported(module: str) -> types.ModuleType:
    """A module; `InputError` if it is not there. What a module that is there raises is passed on."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not _within(module, error.name):
            raise
        places = f"it is looked for in {str(Path.cwd())!r} and among the installed packages"
        raise InputError(f"there is no module {module!r}; {places}") from error


@contextmanager
def importable_here() -> Iterator[None]:
    """Modules of the current folder can be imported, as with `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _is_allowed(target: str) -> bool:
    return outside(target) and any(_within(target, name) for name in allowed())


def _within(name: str, above: str) -> bool:
    return name == above or name.startswith(f"{above}.")


def _home(found: Any) -> str:
    return str(getattr(found, "__module__", ""))


def _package(kind: type) -> str:
    """The package of viscos that a kind belongs to; empty for kinds of others."""
    words = kind.__module__.split(".")
    return ".".join(words[:2]) if words[0] == "viscos" else ""


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # an annotation of something that is imported for type checkers alone
        return {}


def _classes(hint: Any) -> tuple[type, ...]:
    """The classes that an annotation names."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for each in get_args(hint) for kind in _classes(each))
    return (hint,) if inspect.isclass(hint) and get_origin(hint) is None and hint is not type(None) else ()


def _is_a(made: Any, kind: type) -> bool:
    """Whether a class is of a kind, or an object is; of a protocol, if it has all that the protocol names."""
    found = made if inspect.isclass(made) else type(made)
    if not getattr(kind, "_is_protocol", False):
        return issubclass(found, kind)
    needed = [name for name in vars(kind) if not name.startswith("_")]
    declared = {name for base in found.__mro__ for name in vars(base).get("__annotations__", ())}
    return bool(needed) and all(hasattr(made, name) or name in declared for name in needed)


def _named(*kinds: type) -> str:
    names = [kind.__name__ for kind in kinds] or ["setting"]
    return " or ".join(f"{'an' if name[0] in 'AEIOU' else 'a'} {name}" for name in names)
