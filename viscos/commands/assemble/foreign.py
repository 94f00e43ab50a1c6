"""A flow that was trained with another library, from the command line: `viscos impute flow=foreign`.

The factory is a user's code. It runs because the user named it on the command line, and for no other reason: a
description in a checkpoint goes through `viscos.core.build`, which takes parts of viscos alone.
"""

from __future__ import annotations

import inspect
import pickle
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from viscos import runs
from viscos.core.build import importable_here, imported
from viscos.core.errors import InputError
from viscos.data.sources.array import IMAGES, find, read_arrays
from viscos.data.sources.table import ARRAYS, TABLES, header
from viscos.flows import Flow, wrap
from viscos.flows.foreign.foreign import Foreign
from viscos.runs.checkpoint import check_sums
from viscos.runs.trained import Trained
from viscos.train.model import Model


def load_foreign(factory: str, checkpoint: str | None, items: str | None, device: torch.device) -> Trained:
    """What the factory makes, with the weights of `checkpoint`, in the place of a trained run.

    `items` is the file of what is to be completed, which may tell the shape of an item.
    """
    if not factory:
        raise InputError("the flow of a run is in its checkpoint; leave flow= out, or take flow=foreign flow.factory=…")
    if items is None:
        raise InputError("flow=foreign has no test items of its own; give input=<array file, picture or folder>")
    made = _made(factory, _item_shape(items))
    if checkpoint is not None:
        load_weights(made, runs.find_checkpoint(checkpoint), factory)
    try:
        flow = wrap(made)
        if flow.shape is None:
            flow = wrap(made, _item_shape(items))
    except InputError as error:
        raise InputError(f"flow.factory={factory}: {error}") from error
    if flow.shape is None:
        raise InputError(f"the flow of {factory} does not know the shape of an item; return wrap(…, shape=…)")
    if len(flow.shape) not in (1, 3):
        raise InputError(
            f"the flow of {factory} takes items of shape {tuple(flow.shape)}; from the shell they are vectors (d,) or "
            "images (C, H, W); viscos.condition takes any"
        )
    model = Model(flow.to(device).eval(), None, None)
    path = Path(factory if checkpoint is None else checkpoint)
    return Trained(model=model, cfg={}, state={"shape": list(flow.shape)}, path=path)


def load_weights(model: Any, path: Path, factory: str) -> None:
    """Loads the state dict in a file, which is read without running anything that it contains."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{factory} returned a {type(model).__name__}, which takes no state dict; say checkpoint=null")
    if zipfile.is_zipfile(path):  # files of the first versions of torch are none, and have no check sums
        check_sums(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise InputError(
            f"{str(path)!r} cannot be read as a state dict; write one by torch.save(model.state_dict(), …)"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        held = f"a dict of {', '.join(map(str, list(state)[:4]))}" if isinstance(state, dict) else type(state).__name__
        raise InputError(f"{str(path)!r} holds {held}, not a state dict; write torch.save(model.state_dict(), …)")
    foreign = model.layers[0] if isinstance(model, Flow) and len(model.layers) == 1 else None
    if isinstance(foreign, Foreign) and not any(str(key).startswith("layers.0.held.") for key in state):
        model = foreign.held[0] if len(foreign.held) else model  # weights of what was wrapped
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{str(path)!r} does not fit what {factory} returned: {_short(error)}") from error


def _made(factory: str, shape: tuple[int, ...] | None) -> Any:
    """What the factory returns."""
    module_name, _, name = factory.partition(":")
    if not module_name or not name.isidentifier():
        raise InputError(f"flow.factory={factory}: write module:function, e.g. flow.factory=flows:make")
    with importable_here():
        module = _run(f"importing {module_name}", lambda: imported(module_name))
        function = getattr(module, name, None)
        if not callable(function):
            raise InputError(f"flow.factory={factory}: {module_name} has no function {name!r}")
        arguments = _arguments(function, shape, factory)
        return _run(f"{factory}", lambda: function(*arguments))


def _run(what: str, action: Callable[[], Any]) -> Any:
    """The user's code; what it raises becomes one line that says where."""
    try:
        return action()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{what} raised {type(error).__name__}: {_short(error)} ({place.filename}, line {place.lineno})"
        ) from error


def _arguments(function: Callable[..., Any], shape: tuple[int, ...] | None, factory: str) -> list[Any]:
    """None, or the shape of an item if the function must have one argument or has one of that name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or any(p not in positional for p in needed):
        names = ", ".join(p.name for p in needed)
        raise InputError(f"{factory} needs {names}; a factory takes no argument, or the shape of an item alone")
    if not needed and not (positional and positional[0].name == "shape"):
        return []
    if shape is None:
        if not needed:
            return []
        raise InputError(
            f"{factory} takes the shape of an item, which only an array or a table tells; give input=<.npy, .npz, .csv>"
        )
    return [shape]


def _item_shape(path: str) -> tuple[int, ...] | None:
    """The shape of an item in an array file or a table."""
    file = Path(path).expanduser()
    if file.suffix.lower() in TABLES:
        return (len(header(file)),)
    if file.suffix.lower() not in (".npy", ".npz"):
        return None
    arrays = read_arrays(file)
    array = arrays[find(arrays, (*IMAGES, *ARRAYS), file, "items")]
    return (1, *array.shape[1:]) if array.ndim == 3 else array.shape[1:]


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 240 else f"{text[:240]}…"
